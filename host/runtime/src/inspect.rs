//! What a file is, before anything of it is stored: a component, of which world, of which version,
//! importing what; and whether its manifest and its tools keep to the rules.
//!
//! What can be read off the bytes is read here; [`crate::Runtime::inspect`] then asks the guest for
//! its manifest and has it checked here too.

use std::collections::BTreeSet;

use mainstay_core::BoxError;
use mainstay_core::plugin::{
    GuestError, HostPattern, HttpRule, Kind, PluginInfo, SecretRule, Tool,
};
use wasmparser::{Encoding, Parser, Payload};

use crate::bindings::VERSIONS;
use crate::limits::{self, ToolboxLimits};

/// Why a component is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this is {found}; a plugin is a WebAssembly component")]
    NotAComponent { found: String },
    #[error("this component is malformed or truncated: {0}")]
    Malformed(String),
    #[error(
        "this component exports {found}; a plugin exports exactly one of mainstay:plugin/steps (a \
         runner), mainstay:plugin/models (a provider) and mainstay:plugin/tools (a toolbox)"
    )]
    World { found: String },
    #[error(
        "built for mainstay:plugin@{found}; this host takes {}: build it against one of these",
        VERSIONS.join(", ")
    )]
    Version { found: String },
    #[error("a {kind} may not import `{import}`: {why}")]
    Import {
        kind: Kind,
        import: String,
        why: &'static str,
    },
    #[error("`{field}` of its manifest {problem}")]
    Manifest { field: String, problem: String },
    #[error("`{field}` of its tool `{tool}` {problem}")]
    Tool {
        tool: String,
        field: &'static str,
        problem: String,
    },
    #[error("its list of tools {0}")]
    Tools(String),
    /// It could not say what it is.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The host's own trouble: try again.
    #[error("the component could not be stored")]
    Store(#[source] BoxError),
}

/// What can be read off a component's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) version: String,
    pub(crate) imports: Vec<String>,
}

const PACKAGE: &str = "mainstay:plugin/";

pub(crate) fn shape(bytes: &[u8]) -> Result<Shape, Error> {
    let found = match bytes {
        [] => Some("an empty file".to_owned()),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => Some("a core WebAssembly module".to_owned()),
        [0, b'a', b's', b'm', ..] if bytes.len() < 8 => {
            Some("the first bytes of a WebAssembly file; the rest is missing".to_owned())
        }
        [0, b'a', b's', b'm', ..] => None,
        _ if std::str::from_utf8(bytes).is_ok() => Some("a text file".to_owned()),
        _ => Some("neither WebAssembly nor text".to_owned()),
    };
    if let Some(found) = found {
        return Err(Error::NotAComponent { found });
    }

    let (imports, exports) = names(bytes).map_err(|error| Error::Malformed(error.to_string()))?;
    let (kind, version) = world(&exports)?;
    if !VERSIONS.contains(&version.as_str()) {
        return Err(Error::Version { found: version });
    }
    for import in &imports {
        if let Err(why) = may_import(kind, import, &version) {
            return Err(Error::Import {
                kind,
                import: import.clone(),
                why,
            });
        }
    }
    Ok(Shape {
        kind,
        version,
        imports,
    })
}

/// What the outermost component imports and exports.
fn names(bytes: &[u8]) -> wasmparser::Result<(Vec<String>, Vec<String>)> {
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let mut depth = 0_u32;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload? {
            Payload::Version { encoding, .. } => {
                depth += 1;
                debug_assert!(depth > 1 || encoding == Encoding::Component);
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    imports.push(import?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                for export in section {
                    exports.push(export?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok((imports, exports))
}

fn world(exports: &[String]) -> Result<(Kind, String), Error> {
    let mut worlds = exports.iter().filter_map(|export| {
        let (name, version) = export.strip_prefix(PACKAGE)?.split_once('@')?;
        let kind = match name {
            "steps" => Kind::Runner,
            "models" => Kind::Provider,
            "tools" => Kind::Toolbox,
            _ => return None,
        };
        Some((kind, version.to_owned()))
    });
    match (worlds.next(), worlds.next()) {
        (Some(world), None) => Ok(world),
        _ => Err(Error::World {
            found: match exports {
                [] => "nothing (it may be cut off)".to_owned(),
                _ => exports.join(", "),
            },
        }),
    }
}

/// Interfaces of WASI 0.2 that are there, if only inert.
const WASI: &[&str] = &[
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

fn may_import(kind: Kind, import: &str, version: &str) -> Result<(), &'static str> {
    let (name, found) = import.split_once('@').unwrap_or((import, ""));
    if let Some(interface) = name.strip_prefix(PACKAGE) {
        if found != version {
            return Err("it is of another version than its exports");
        }
        let known: &[Kind] = match interface {
            "types" | "manifest" | "http" | "logging" => {
                &[Kind::Runner, Kind::Provider, Kind::Toolbox]
            }
            "history" => &[Kind::Runner],
            "calling" | "fetching" => &[Kind::Toolbox],
            _ => return Err("this host does not know it"),
        };
        return if known.contains(&kind) {
            Ok(())
        } else {
            Err("it is there for another kind of plugin")
        };
    }
    if name.starts_with("wasi:sockets/") {
        return Err("no plugin may open sockets");
    }
    if name.starts_with("wasi:http/") {
        return Err(match kind {
            Kind::Toolbox => {
                "this host does not offer it; send requests with mainstay:plugin/fetching"
            }
            _ => "a runner or provider sends nothing itself; the host does, from what it returns",
        });
    }
    let is_wasi_0_2 = found.starts_with("0.2.");
    if WASI.contains(&name) && is_wasi_0_2 {
        return Ok(());
    }
    Err("this host does not know it")
}

/// Checks what a guest says of itself.
pub(crate) fn manifest(info: &PluginInfo) -> Result<(), Error> {
    let refuse = |field: &str, problem: String| {
        Err(Error::Manifest {
            field: field.to_owned(),
            problem,
        })
    };
    if !is_name(&info.name, |byte| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
    }) {
        return refuse(
            "name",
            format!(
                "is {:?}; it has 1 to 64 characters of a-z, 0-9 and -",
                short(&info.name)
            ),
        );
    }
    if let Err(error) = semver::Version::parse(&info.version) {
        return refuse(
            "version",
            format!(
                "is {:?}, which is no semantic version: {error}",
                short(&info.version)
            ),
        );
    }
    if info.summary.contains('\n') {
        return refuse("summary", "has more than one line".to_owned());
    }
    if let Some(schema) = &info.options_schema
        && let Err(problem) = schema_of(schema)
    {
        return refuse("options-schema", problem);
    }
    for (at, accepted) in info.accepts.iter().enumerate() {
        if accepted.runner.is_empty() {
            return refuse(&format!("accepts[{at}].runner"), "is empty".to_owned());
        }
    }
    for (at, rule) in info.http.iter().enumerate() {
        http_rule(info.kind, rule)
            .or_else(|(field, problem)| refuse(&format!("http[{at}].{field}"), problem))?;
    }
    let mut names = BTreeSet::new();
    for (at, rule) in info.secrets.iter().enumerate() {
        secret_rule(info.kind, rule)
            .or_else(|(field, problem)| refuse(&format!("secrets[{at}].{field}"), problem))?;
        if !names.insert(&rule.name) {
            return refuse(
                &format!("secrets[{at}].name"),
                format!("is {:?}, as is another's", rule.name),
            );
        }
    }
    for (at, model) in info.models.iter().enumerate() {
        if model.id.is_empty() {
            return refuse(&format!("models[{at}].id"), "is empty".to_owned());
        }
    }
    let mut names = BTreeSet::new();
    for (at, tool) in info.hosted_tools.iter().enumerate() {
        if tool.name.is_empty() || !names.insert(&tool.name) {
            return refuse(
                &format!("hosted-tools[{at}].name"),
                "is empty or another's".to_owned(),
            );
        }
    }
    Ok(())
}

type FieldProblem = (String, String);

fn http_rule(kind: Kind, rule: &HttpRule) -> Result<(), FieldProblem> {
    host_pattern(kind, &rule.host)?;
    for method in &rule.methods {
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err((
                "methods".to_owned(),
                format!(
                    "holds {:?}; a method is in capitals, like GET",
                    short(method)
                ),
            ));
        }
    }
    if !rule.path_prefix.starts_with('/') {
        return Err((
            "path-prefix".to_owned(),
            format!("is {:?}; it starts with /", short(&rule.path_prefix)),
        ));
    }
    if rule.path_prefix.contains(['?', '#']) {
        return Err((
            "path-prefix".to_owned(),
            format!("is {:?}; it is a path alone", short(&rule.path_prefix)),
        ));
    }
    Ok(())
}

fn secret_rule(kind: Kind, rule: &SecretRule) -> Result<(), FieldProblem> {
    if rule.name.is_empty() || rule.name.len() > 64 {
        return Err((
            "name".to_owned(),
            format!("is {:?}; it has 1 to 64 characters", short(&rule.name)),
        ));
    }
    rule.hosts
        .iter()
        .try_for_each(|pattern| host_pattern(kind, pattern))
}

fn host_pattern(kind: Kind, pattern: &HostPattern) -> Result<(), FieldProblem> {
    let problem = match pattern {
        HostPattern::BaseUrl if kind == Kind::Toolbox => {
            "is base-url, which only a provider is configured with".to_owned()
        }
        HostPattern::Name(name) | HostPattern::Subdomains(name)
            if name.is_empty()
                || name.contains(['/', '*', '@', '?', '#'])
                || name.chars().any(char::is_whitespace) =>
        {
            format!("is {:?}, which is no host's name", short(name))
        }
        _ => return Ok(()),
    };
    Err(("host".to_owned(), problem))
}

/// Checks the tools of a toolbox.
pub(crate) fn tools(tools: &[Tool], limits: &ToolboxLimits) -> Result<(), Error> {
    if tools.len() > limits.tools {
        return Err(Error::Tools(format!(
            "holds {} tools; the limit is {}",
            tools.len(),
            limits.tools
        )));
    }
    let bytes: usize = tools
        .iter()
        .map(|tool| {
            let definition = &tool.definition;
            definition.name.len() + definition.description.len() + definition.input_schema.len()
        })
        .sum();
    if bytes > limits.tools_bytes {
        return Err(Error::Tools(format!(
            "takes {bytes} bytes; the limit is {}",
            limits::bytes(limits.tools_bytes)
        )));
    }
    let mut names = BTreeSet::new();
    for tool in tools {
        let definition = &tool.definition;
        let refuse = |field: &'static str, problem: String| {
            Err(Error::Tool {
                tool: short(&definition.name).to_owned(),
                field,
                problem,
            })
        };
        if !is_name(&definition.name, |byte| {
            byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
        }) {
            return refuse(
                "name",
                "does not have 1 to 64 characters of A-Z, a-z, 0-9, _ and -".to_owned(),
            );
        }
        if !names.insert(&definition.name) {
            return refuse("name", "is another tool's too".to_owned());
        }
        match schema_of(&definition.input_schema) {
            Err(problem) => return refuse("input-schema", problem),
            Ok(schema) if !root_is_object(&schema) => {
                return refuse(
                    "input-schema",
                    "does not say `\"type\": \"object\"` at its root".to_owned(),
                );
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

fn schema_of(text: &str) -> Result<serde_json::Value, String> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    if !value.is_object() {
        return Err("is no JSON Schema: it is no object".to_owned());
    }
    jsonschema::validator_for(&value).map_err(|error| format!("is no JSON Schema: {error}"))?;
    Ok(value)
}

fn root_is_object(schema: &serde_json::Value) -> bool {
    schema.get("type").and_then(serde_json::Value::as_str) == Some("object")
}

fn is_name(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(allowed)
}

/// What of a guest's text fits into a message.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

#[cfg(test)]
mod tests {
    use mainstay_core::plugin::{Scheme, Workspace};

    use super::*;

    fn info() -> PluginInfo {
        PluginInfo {
            digest: String::new(),
            kind: Kind::Toolbox,
            name: "a-name".to_owned(),
            version: "1.2.3".to_owned(),
            summary: "A summary".to_owned(),
            wit: "0.1.0".to_owned(),
            size: 0,
            imports: Vec::new(),
            options_schema: Some("{}".to_owned()),
            state_version: 0,
            accepts: Vec::new(),
            http: vec![HttpRule {
                scheme: Scheme::Https,
                host: HostPattern::Name("example.test".to_owned()),
                port: None,
                methods: vec!["GET".to_owned()],
                path_prefix: "/".to_owned(),
            }],
            secrets: vec![SecretRule {
                name: "key".to_owned(),
                hosts: vec![HostPattern::Subdomains("example.test".to_owned())],
                purpose: String::new(),
                required: true,
            }],
            workspace: Workspace::None,
            models: Vec::new(),
            hosted_tools: Vec::new(),
            tools: Vec::new(),
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut PluginInfo), field: &str) {
        let mut info = info();
        change(&mut info);
        match manifest(&info) {
            Err(Error::Manifest { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn plugin_6_a_manifest_that_breaks_a_rule_is_refused_by_field() {
        manifest(&info()).unwrap();
        check(|info| info.name = "A Name".to_owned(), "name");
        check(|info| info.name = "x".repeat(65), "name");
        check(|info| info.version = "1".to_owned(), "version");
        check(|info| info.summary = "a\nb".to_owned(), "summary");
        for schema in ["", "no json", "[]", r#"{"type":"nothing"}"#] {
            check(
                |info| info.options_schema = Some(schema.to_owned()),
                "options-schema",
            );
        }
        check(
            |info| info.http[0].methods.push("get".to_owned()),
            "http[0].methods",
        );
        check(
            |info| info.http[0].path_prefix = "v1".to_owned(),
            "http[0].path-prefix",
        );
        check(
            |info| info.http[0].host = HostPattern::BaseUrl,
            "http[0].host",
        );
        check(
            |info| info.http[0].host = HostPattern::Name("a/b".to_owned()),
            "http[0].host",
        );
        check(|info| info.secrets[0].name.clear(), "secrets[0].name");
        check(
            |info| info.secrets.push(info.secrets[0].clone()),
            "secrets[1].name",
        );
    }

    #[test]
    fn plugin_6_an_input_schema_is_of_an_object() {
        let tool = |schema: &str| Tool {
            definition: mainstay_core::model::ToolDefinition {
                name: "a_tool".to_owned(),
                description: String::new(),
                input_schema: schema.to_owned(),
            },
            effect: mainstay_core::model::Effect::Pure,
        };
        let limits = ToolboxLimits::default();
        tools(&[tool(r#"{"type":"object"}"#)], &limits).unwrap();
        for schema in ["", "{}", "true", r#"{"type":"string"}"#, r#"{"type":7}"#] {
            match tools(&[tool(schema)], &limits) {
                Err(Error::Tool { tool, field, .. }) => {
                    assert_eq!((tool.as_str(), field), ("a_tool", "input-schema"));
                }
                other => panic!("{schema}: {other:?}"),
            }
        }
    }
}
