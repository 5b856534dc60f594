//! An empty library for `tests/model.rs`. The models are a package of their own, because exploring millions of states
//! needs an optimised build, which the other tests do not need.
