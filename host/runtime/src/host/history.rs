pub(crate) struct History;
