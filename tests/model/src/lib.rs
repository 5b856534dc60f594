//! A home for `tests/model.rs`. Apart from the other tests, because millions of states want an
//! optimised build and nothing else does.
