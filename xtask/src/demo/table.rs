//! Tables that look like kubectl's.

use serde_json::Value;

/// Lines of a `Table` as the API server sends it: all rows, or those of the names given.
pub(super) fn of_server(table: &Value, names: &[&str], wide: bool) -> Vec<String> {
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let columns = array(&table["columnDefinitions"]);
    let is_shown = |at: usize| wide || columns.get(at).is_some_and(|column| column["priority"] == 0);
    let head: Vec<String> = columns
        .iter()
        .enumerate()
        .filter(|(at, _)| is_shown(*at))
        .map(|(_, column)| text(&column["name"]).to_uppercase())
        .collect();
    let rows: Vec<Vec<String>> = array(&table["rows"])
        .iter()
        .filter(|row| {
            let name = row["object"]["metadata"]["name"].as_str().unwrap_or_default();
            names.is_empty() || names.contains(&name)
        })
        .map(|row| {
            let cells = array(&row["cells"]);
            cells.iter().enumerate().filter(|(at, _)| is_shown(*at)).map(|(_, cell)| text(cell)).collect()
        })
        .collect();
    lines(head, rows)
}

/// Lines of a table of our own.
pub(super) fn lines(head: Vec<String>, rows: Vec<Vec<String>>) -> Vec<String> {
    if rows.is_empty() {
        return vec!["No resources found".to_owned()];
    }
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |at: usize| all.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    all.iter()
        .map(|row| {
            let cells =
                row.iter().enumerate().map(|(at, cell)| format!("{cell:w$}   ", w = width(at).unwrap_or(0)));
            cells.collect::<String>().trim_end().to_owned()
        })
        .collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_line_up_and_wide_ones_are_shown_when_asked_for() {
        let table = json!({
            "columnDefinitions": [
                { "name": "Name", "priority": 0 }, { "name": "Pods", "priority": 0 }, { "name": "Mode", "priority": 1 },
            ],
            "rows": [
                { "cells": ["long-name", 3, "x"], "object": { "metadata": { "name": "long-name" } } },
                { "cells": ["b", null, "y"], "object": { "metadata": { "name": "b" } } },
            ],
        });
        assert_eq!(
            of_server(&table, &[], false),
            ["NAME        PODS", "long-name   3", "b           <none>"]
        );
        assert_eq!(of_server(&table, &["b"], true), ["NAME   PODS     MODE", "b      <none>   y"]);
        assert_eq!(of_server(&table, &["c"], true), ["No resources found"]);
    }
}
