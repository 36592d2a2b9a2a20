//! Explains the state of an upload (`upload`), what requests use of it (`usage`), and the entries
//! that a request for a module would read (`module`). Changes nothing.

mod module;
mod upload;
mod usage;
