mod bindings;
mod host;
