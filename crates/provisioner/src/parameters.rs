//! Class parameters: a map of strings, read into an author's own struct.

use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use std::collections::BTreeMap;
use thiserror::Error;

/// `parameters` of a StorageClass.
pub type ParameterMap = BTreeMap<String, String>;

/// A parameter that cannot be read. The text names the field and what would do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct ParameterError {
    text: String,
    /// Which one it is, where it is one that is there.
    key: Option<String>,
}

impl serde::de::Error for ParameterError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self { text: message.to_string(), key: None }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let known = match expected {
            [] => "there are none".to_owned(),
            [only] => format!("expected `{only}`"),
            [one, other] => format!("expected `{one}` or `{other}`"),
            many => {
                let names: Vec<_> = many.iter().map(|name| format!("`{name}`")).collect();
                format!("expected one of {}", names.join(", "))
            }
        };
        Self { text: format!("unknown field `{field}`, {known}"), key: Some(field.to_owned()) }
    }
}

/// Reads class parameters into `P`. All values of a class are strings: numbers, booleans and unit enums are parsed from
/// them. Give `P` `#[serde(deny_unknown_fields)]`, and a misspelt name is answered with the list of known ones.
///
/// ```
/// # use serde::Deserialize;
/// # use volwright_provisioner::parse_parameters;
/// #[derive(Deserialize, Debug)]
/// #[serde(rename_all = "camelCase", deny_unknown_fields)]
/// struct Parameters { pool: String, #[serde(default)] reserve: bool }
///
/// let map = [("pool".to_owned(), "fast".to_owned()), ("reserv".to_owned(), "true".to_owned())].into();
/// let error = parse_parameters::<Parameters>(&map).unwrap_err();
/// assert_eq!(error.to_string(), "unknown field `reserv`, expected `pool` or `reserve`");
/// ```
pub fn parse_parameters<P: DeserializeOwned>(map: &ParameterMap) -> Result<P, ParameterError> {
    let entries = map.iter().map(|(key, value)| (key.as_str(), Text { key, value }));
    P::deserialize(MapDeserializer::new(entries))
}

/// All that is wrong with the parameters, not only the first: for tools that explain. Empty where
/// [`parse_parameters`] succeeds.
pub fn parameter_problems<P: DeserializeOwned>(map: &ParameterMap) -> Vec<ParameterError> {
    let (mut rest, mut problems) = (map.clone(), Vec::new());
    while let Err(problem) = parse_parameters::<P>(&rest) {
        // Without the bad one the others show. What is missing then may be what was just taken away.
        let taken = problem.key.as_ref().is_some_and(|key| rest.remove(key).is_some());
        let repeats = problem.key.is_none() && !problems.is_empty() && names_one_of(&problem, map);
        if !repeats {
            problems.push(problem);
        }
        if !taken {
            break;
        }
    }
    problems
}

/// Is it about a parameter that is there?
fn names_one_of(problem: &ParameterError, map: &ParameterMap) -> bool {
    map.keys().any(|key| problem.text.contains(&format!("`{key}`")))
}

#[derive(Clone, Copy)]
struct Text<'a> {
    key: &'a str,
    value: &'a str,
}

impl Text<'_> {
    fn not(self, what: &str) -> ParameterError {
        let text = format!("parameter {:?}: {:?} is not {what}", self.key, self.value);
        ParameterError { text, key: Some(self.key.to_owned()) }
    }
}

impl<'de> IntoDeserializer<'de, ParameterError> for Text<'de> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! whole_numbers {
    ($($method:ident => $visit:ident: $ty:ty),*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParameterError> {
            let number: $ty = self.value.parse().map_err(|_| {
                self.not(&format!("a whole number from {} to {}", <$ty>::MIN, <$ty>::MAX))
            })?;
            visitor.$visit(number)
        })*
    };
}

impl<'de> Deserializer<'de> for Text<'de> {
    type Error = ParameterError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParameterError> {
        visitor.visit_borrowed_str(self.value)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParameterError> {
        match self.value {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            _ => Err(self.not("true or false")),
        }
    }

    whole_numbers! {
        deserialize_u8 => visit_u8: u8, deserialize_u16 => visit_u16: u16, deserialize_u32 => visit_u32: u32,
        deserialize_u64 => visit_u64: u64, deserialize_i8 => visit_i8: i8, deserialize_i16 => visit_i16: i16,
        deserialize_i32 => visit_i32: i32, deserialize_i64 => visit_i64: i64
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParameterError> {
        let number: f64 = self.value.parse().map_err(|_| self.not("a number"))?;
        visitor.visit_f64(number)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParameterError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ParameterError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ParameterError> {
        if variants.contains(&self.value) {
            visitor.visit_enum(self.value.into_deserializer())
        } else {
            Err(self.not(&format!("one of {}", variants.join(", "))))
        }
    }

    forward_to_deserialize_any! {
        i128 u128 f32 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum OnDelete {
        Delete,
        Retain,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Example {
        pool: String,
        #[serde(default)]
        reserve: Option<bool>,
        #[serde(default)]
        uid: Option<u32>,
        #[serde(default)]
        on_delete: Option<OnDelete>,
    }

    fn parse(entries: &[(&str, &str)]) -> Result<Example, String> {
        let map = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        parse_parameters(&map).map_err(|e| e.to_string())
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let problems = |entries: &[(&str, &str)]| {
            let map = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            parameter_problems::<Example>(&map).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(problems(&[("pool", "a")]), Vec::<String>::new());
        let known = "expected one of `pool`, `reserve`, `uid`, `onDelete`";
        assert_eq!(
            problems(&[("pol", "a"), ("reserve", "yes"), ("uid", "-1")]),
            [
                format!("unknown field `pol`, {known}"),
                "parameter \"reserve\": \"yes\" is not true or false".to_owned(),
                "parameter \"uid\": \"-1\" is not a whole number from 0 to 4294967295".to_owned(),
                "missing field `pool`".to_owned(),
            ]
        );
    }

    #[test]
    fn a_bad_value_of_a_required_parameter_is_not_told_as_missing_too() {
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "only parsed")]
        struct Needs {
            count: u8,
        }
        let map = [("count".to_owned(), "many".to_owned())].into();
        let problems = parameter_problems::<Needs>(&map);
        assert_eq!(problems.len(), 1, "{problems:?}");
    }

    #[test]
    fn every_refusal_names_the_field_and_what_would_do() {
        let full = Example {
            pool: "a".into(),
            reserve: Some(true),
            uid: Some(7),
            on_delete: Some(OnDelete::Retain),
        };
        let entries = [("pool", "a"), ("reserve", "true"), ("uid", "7"), ("onDelete", "retain")];
        assert_eq!(parse(&entries), Ok(full));
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[], "missing field `pool`"),
            (&[("pool", "a"), ("reserve", "yes")], "parameter \"reserve\": \"yes\" is not true or false"),
            (
                &[("pool", "a"), ("uid", "-1")],
                "parameter \"uid\": \"-1\" is not a whole number from 0 to 4294967295",
            ),
            (
                &[("pool", "a"), ("onDelete", "retian")],
                "parameter \"onDelete\": \"retian\" is not one of delete, retain",
            ),
            (
                &[("pool", "a"), ("Pool", "b")],
                "unknown field `Pool`, expected one of `pool`, `reserve`, `uid`, `onDelete`",
            ),
        ];
        for (entries, expected) in cases {
            assert_eq!(parse(entries), Err(expected.to_owned()), "{entries:?}");
        }
    }
}
