//! Class parameters, and the backend's names.

use crate::conformance::bench::Bench;
use crate::conformance::fixture::Fixture;
use crate::conformance::verdict::{Checked, expect, failed};
use schemars::schema_for;
use serde_json::Value;
use volwright_provisioner::{Provisioner, parse_parameters};

/// A name that no backend has a parameter of.
const UNKNOWN: &str = "volwrightConformanceUnknown";

pub(super) async fn names<F: Fixture>(_: &Bench<F>) -> Checked {
    let name = F::Backend::BACKEND;
    let label = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    expect(label, "BACKEND has only a-z, 0-9 and inner dashes, and at most 63 of them", || {
        format!("{name:?}")
    })?;
    expect(F::Backend::HANDLE_VERSION > 0, "HANDLE_VERSION counts from 1", || "0".to_owned())
}

pub(super) async fn accepted<F: Fixture>(bench: &Bench<F>) -> Checked {
    let offers = bench.offered()?;
    expect(!offers.modes.is_empty(), "capabilities offer a volume mode with an access mode", || {
        format!("{offers:?}")
    })?;
    for parameters in bench.hostile_classes() {
        bench.offers(&parameters)?;
    }
    Ok(())
}

pub(super) async fn unknown_refused<F: Fixture>(bench: &Bench<F>) -> Checked {
    let mut parameters = bench.fixture.parameters();
    parameters.insert(UNKNOWN.to_owned(), "x".to_owned());
    match parse_parameters::<<F::Backend as Provisioner>::Parameters>(&parameters) {
        Err(error) if error.to_string().contains(UNKNOWN) => Ok(()),
        Err(error) => failed("the refusal names the parameter", error.to_string()),
        Ok(_) => {
            failed("a class with an unknown parameter is refused", format!("{parameters:?} is accepted"))
        }
    }
}

pub(super) async fn schema<F: Fixture>(bench: &Bench<F>) -> Checked {
    let schema = schema_for!(<F::Backend as Provisioner>::Parameters).to_value();
    expect(schema["type"] == "object", "the schema is that of an object", || schema.to_string())?;
    expect(
        schema["additionalProperties"] == Value::Bool(false),
        "the schema refuses unknown parameters, as the backend does",
        || format!("additionalProperties is {}", schema["additionalProperties"]),
    )?;
    let none = serde_json::Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    for (name, property) in properties {
        let text = property["description"].as_str().unwrap_or_default();
        expect(!text.is_empty(), "every parameter is described (a doc comment on the field)", || {
            format!("{name:?} is not")
        })?;
    }
    let given = bench.fixture.parameters();
    for name in given.keys() {
        expect(properties.contains_key(name), "every parameter is in the schema", || {
            format!("{name:?} is accepted and not in it")
        })?;
    }
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    for name in required.iter().filter_map(Value::as_str) {
        expect(given.contains_key(name), "what the schema requires is required", || {
            format!("{name:?} is left out by the fixture, and accepted")
        })?;
    }
    Ok(())
}
