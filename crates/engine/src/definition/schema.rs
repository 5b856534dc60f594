//! The published JSON Schema of a definition, and the reference page, both from one table ([`tables`]).
//!
//! The schema says what editors can use: fields, types, bounds, fixed words. What only a check of the whole can say
//! (needs, names in expressions, circles, the number of steps) is left to [`read`](super::read).

mod page;
mod tables;

use serde_json::{Map, Value, json};

pub use page::page;

use self::tables::{OBJECTS, Object, Rule, Shape};

/// The address under which the schema is published, on each server.
const ID: &str = "/schemas/workflow";

/// The JSON Schema (2020-12) of a definition.
pub fn schema() -> Value {
    let mut defs = Map::new();
    for object in OBJECTS.iter().skip(1) {
        defs.insert(object.name.to_owned(), of_object(object));
    }
    defs.insert("steps".into(), json!({"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}}));
    let mut root = OBJECTS.first().map(of_object).unwrap_or_default();
    if let Value::Object(fields) = &mut root {
        fields.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        fields.insert("$id".into(), json!(ID));
        fields.insert("title".into(), json!("A Muster workflow"));
        fields.insert("$defs".into(), Value::Object(defs));
    }
    root
}

fn of_object(object: &Object) -> Value {
    let mut properties = Map::new();
    for field in object.fields {
        let mut schema = of_shape(&field.shape);
        if let Value::Object(words) = &mut schema {
            words.insert("description".into(), json!(field.doc));
        }
        properties.insert(field.name.to_owned(), schema);
    }
    let required: Vec<&str> = object.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    let mut schema = json!({
        "type": "object",
        "description": object.doc,
        "properties": properties,
        "additionalProperties": false,
    });
    if let Value::Object(words) = &mut schema {
        if !required.is_empty() {
            words.insert("required".into(), json!(required));
        }
        let choices: Vec<Value> = match object.rule {
            Rule::None => Vec::new(),
            Rule::OneOf(names) => names.iter().map(|name| json!({"required": [name]})).collect(),
            Rule::Branch => vec![json!({"required": ["when", "steps"]}), json!({"required": ["else"]})],
        };
        if !choices.is_empty() {
            words.insert("oneOf".into(), Value::Array(choices));
        }
    }
    schema
}

fn of_shape(shape: &Shape) -> Value {
    match shape {
        Shape::Text { most } => json!({"type": "string", "maxLength": most}),
        Shape::Name(pattern) => json!({"type": "string", "pattern": pattern}),
        Shape::Expression => json!({"type": "string", "minLength": 1, "maxLength": 4096}),
        Shape::Condition => json!({"type": ["string", "boolean"], "maxLength": 4096}),
        Shape::Value => json!({}),
        Shape::Interpolated => json!({"type": "string"}),
        Shape::Millis => {
            let (least, most) = (tables::DELAY.0, tables::DELAY.1);
            let number = json!({"type": "integer", "minimum": least, "maximum": most});
            json!({"anyOf": [number, {"type": "string", "pattern": r"^\s*\$\{\{[\s\S]*\}\}\s*$"}]})
        }
        Shape::Integer(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Shape::Number(least, most) => json!({"type": "number", "minimum": least, "maximum": most}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Words(words) => json!({"enum": words}),
        Shape::Wait => json!({"anyOf": [{"enum": ["all", "any"]}, {"type": "integer", "minimum": 1}]}),
        Shape::Schema => json!({"type": "object"}),
        Shape::Object(name) => json!({"$ref": format!("#/$defs/{name}")}),
        Shape::Compensate => json!({"anyOf": [{"const": "self"}, {"$ref": "#/$defs/compensate"}]}),
        Shape::Steps => json!({"$ref": "#/$defs/steps"}),
        Shape::Branches => json!({
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": tables::ID},
            "additionalProperties": {"$ref": "#/$defs/steps"},
        }),
        Shape::List { of, least } => json!({"type": "array", "minItems": least, "items": of_shape(of)}),
        Shape::Labels { most } => json!({
            "type": "object",
            "maxProperties": most,
            "propertyNames": {"pattern": r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"},
            "additionalProperties": {"type": "string"},
        }),
    }
}

#[cfg(test)]
mod tests;
