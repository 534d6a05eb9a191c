//! What a plugin says of itself and asks for.

pub use crate::bindings::runner::mainstay::plugin::manifest::*;

impl Plugin {
    /// A plugin that takes no options.
    pub fn new(
        name: impl Into<String>,
        version: impl Into<String>,
        summary: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            summary: summary.into(),
            options_schema: None,
        }
    }
}

/// Manifest of a runner whose state has version 1 and that accepts no other.
pub fn runner(
    name: impl Into<String>,
    version: impl Into<String>,
    summary: impl Into<String>,
) -> RunnerManifest {
    RunnerManifest {
        plugin: Plugin::new(name, version, summary),
        state_version: 1,
        accepts: Vec::new(),
    }
}

/// Manifest of a provider that asks for nothing.
pub fn provider(
    name: impl Into<String>,
    version: impl Into<String>,
    summary: impl Into<String>,
) -> ProviderManifest {
    ProviderManifest {
        plugin: Plugin::new(name, version, summary),
        http: Vec::new(),
        secrets: Vec::new(),
        models: Vec::new(),
        hosted_tools: Vec::new(),
    }
}

/// Manifest of a toolbox that asks for nothing.
pub fn toolbox(
    name: impl Into<String>,
    version: impl Into<String>,
    summary: impl Into<String>,
) -> ToolboxManifest {
    ToolboxManifest {
        plugin: Plugin::new(name, version, summary),
        http: Vec::new(),
        secrets: Vec::new(),
        workspace: WorkspaceAccess::None,
    }
}

/// The same fields may be set on every kind of manifest, each by a method that can be chained.
macro_rules! chained {
    ($($manifest:ty),*) => {$(
        impl $manifest {
            /// Sets the JSON Schema of its options.
            #[must_use]
            pub fn options_schema(mut self, schema: impl Into<String>) -> Self {
                self.plugin.options_schema = Some(schema.into());
                self
            }
        }
    )*};
}
chained!(RunnerManifest, ProviderManifest, ToolboxManifest);

/// Every request to the base URL that the operator configures.
#[must_use]
pub fn http_base_url() -> HttpRule {
    HttpRule {
        scheme: Scheme::Https,
        host: HostPattern::BaseUrl,
        port: None,
        methods: Vec::new(),
        path_prefix: "/".to_owned(),
    }
}

/// Requests of these methods (none: all) to any host; the operator narrows it when granting.
#[must_use]
pub fn http_any(scheme: Scheme, methods: &[&str]) -> HttpRule {
    HttpRule {
        scheme,
        host: HostPattern::Any,
        port: None,
        methods: methods.iter().map(|&method| method.to_owned()).collect(),
        path_prefix: "/".to_owned(),
    }
}

impl HostedTool {
    /// A tool that the model's server runs.
    pub fn new(name: impl Into<String>, description: impl Into<String>, effect: Effect) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            effect,
        }
    }
}
