use std::collections::BTreeSet;

use serde_json::Value;

use super::{tables::OBJECTS, *};
use crate::definition::{Format, read, tree};

const ORDER: &str = include_str!("../tests/order.yaml");
const EVERYTHING: &str = include_str!("../tests/everything.yaml");

fn json_of(yaml: &str) -> Value {
    tree::parse(yaml.as_bytes(), Format::Yaml).unwrap().to_json()
}

#[test]
fn the_schema_is_a_schema() {
    let schema = schema();
    assert!(jsonschema::meta::is_valid(&schema));
    jsonschema::options().offline().build(&schema).unwrap();
}

#[test]
fn what_is_fine_is_fine_by_the_schema() {
    let schema = schema();
    let validator = jsonschema::options().offline().build(&schema).unwrap();
    for example in [ORDER, EVERYTHING] {
        let read = read(example.as_bytes(), Format::Yaml).unwrap();
        for value in [json_of(example), read.to_json()] {
            let faults: Vec<String> =
                validator.iter_errors(&value).map(|e| format!("{} {e}", e.instance_path())).collect();
            assert!(faults.is_empty(), "{faults:#?}");
        }
    }
}

/// Collects which fields of which objects a value uses.
fn used(schema: &Value, value: &Value, name: &str, found: &mut BTreeSet<(String, String)>) {
    let Some(object) = OBJECTS.iter().find(|object| object.name == name) else { return };
    let Value::Object(fields) = value else { return };
    for (key, value) in fields {
        let Some(field) = object.fields.iter().find(|field| field.name == key) else { continue };
        found.insert((name.to_owned(), key.clone()));
        follow(schema, value, &field.shape, found);
    }
}

fn follow(schema: &Value, value: &Value, shape: &Shape, found: &mut BTreeSet<(String, String)>) {
    match (shape, value) {
        (Shape::Object(name), value) => used(schema, value, name, found),
        (Shape::Compensate, value) => used(schema, value, "compensate", found),
        (Shape::Steps, Value::Array(items)) => items.iter().for_each(|item| used(schema, item, "step", found)),
        (Shape::Branches, Value::Object(branches)) => {
            branches.values().for_each(|steps| follow(schema, steps, &Shape::Steps, found));
        }
        (Shape::List { of, .. }, Value::Array(items)) => items.iter().for_each(|item| follow(schema, item, of, found)),
        _ => {}
    }
}

#[test]
fn the_reader_takes_every_field_that_the_schema_names() {
    let value = json_of(EVERYTHING);
    let mut found = BTreeSet::new();
    used(&schema(), &value, "definition", &mut found);
    let named = |object: &'static Object| {
        object.fields.iter().map(|field| (object.name.to_owned(), field.name.to_owned())).collect::<Vec<_>>()
    };
    let all: BTreeSet<(String, String)> = OBJECTS.iter().flat_map(named).collect();
    let missing: Vec<_> = all.difference(&found).collect();
    assert!(missing.is_empty(), "everything.yaml, which the reader takes, lacks {missing:?}");
    assert!(read(EVERYTHING.as_bytes(), Format::Yaml).is_ok());
}

/// The shapes that both sides must refuse: the schema alone, or the reader as the schema's check.
#[test]
fn planted_faults_of_form_are_refused() {
    let schema = schema();
    let validator = jsonschema::options().offline().build(&schema).unwrap();
    let everything = json_of(EVERYTHING);
    let mut places = Vec::new();
    collect(&everything, String::new(), &mut places);
    let (mut planted, mut by_schema) = (0, 0);
    for place in places {
        // Inside of these, everything is the user's.
        if ["/set", "/payload", "/show", "/data", "/output", "/init", "/next", "/schema", "/message"]
            .iter()
            .any(|own| place.contains(own))
            || place.starts_with("/input")
            || place.contains("/workflow/input")
        {
            continue;
        }
        for fault in [Value::Bool(true), serde_json::json!({"unknown_field": 1}), serde_json::json!([[]])] {
            let mut broken = everything.clone();
            let Some(at) = broken.pointer_mut(&place) else { continue };
            if *at == fault || (at.is_boolean() && fault.is_boolean()) {
                continue;
            }
            *at = fault.clone();
            let refused = !validator.is_valid(&broken);
            // Conditions may be `true`.
            let condition = fault.is_boolean() && (place.ends_with("/when") || place.ends_with("/until"));
            let read = read(broken.to_string().as_bytes(), Format::Json);
            assert!(condition || read.is_err(), "{place} = {fault} was taken");
            planted += 1;
            by_schema += usize::from(refused);
        }
    }
    assert!(planted > 400, "{planted}");
    assert!(by_schema * 100 > planted * 95, "the schema refuses {by_schema} of {planted}");
}

fn collect(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, item)| collect(item, format!("{at}/{n}"), places))
        }
        Value::Object(fields) => fields.iter().for_each(|(name, field)| collect(field, format!("{at}/{name}"), places)),
        _ => {}
    }
    places.push(at);
}

#[test]
fn the_page_names_every_field_and_links_to_headings() {
    let page = page();
    for object in OBJECTS {
        assert!(page.contains(&format!("## {}\n", object.title)), "{}", object.title);
        for field in object.fields {
            assert!(page.contains(&format!("| `{}` |", field.name)), "{}", field.name);
        }
    }
    let anchors: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|title| {
            title
                .to_lowercase()
                .replace(' ', "-")
                .chars()
                .filter(|c| c.is_alphanumeric() || "_-".contains(*c))
                .collect()
        })
        .collect();
    for link in page.split("](#").skip(1) {
        let anchor = link.split(')').next().unwrap();
        assert!(anchors.contains(anchor), "{anchor} of {anchors:?}");
    }
}
