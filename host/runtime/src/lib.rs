mod bindings;
pub mod egress;
mod engine;
mod host;
mod instance;
pub mod limits;
