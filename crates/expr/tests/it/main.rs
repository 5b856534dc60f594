//! The expression language, as its users see it.

mod bounds;
mod checks;
mod fixture;
mod language;
mod numbers;
mod properties;
mod reads;
mod templates;
mod values;
mod writer;
