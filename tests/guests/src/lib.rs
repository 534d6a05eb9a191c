//! Components for tests of the host: the shipped plugins, one hostile plugin of each kind, a runner
//! that follows plans, and runners to swap in for others.
//!
//! What they do is written at the top of their crates, `runner`, `provider`, `toolbox`, `planner` and
//! `successor` beside this one.

/// The runner `loop`.
pub const LOOP: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_LOOP"));

/// The provider `openai-chat`.
pub const OPENAI_CHAT: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_OPENAI_CHAT"));

/// The provider `parrot`.
pub const PARROT: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_PARROT"));

/// The toolbox `files`.
pub const FILES: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_FILES"));

/// The toolbox `web`.
pub const WEB: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_WEB"));

/// The runner `planner`: follows the plan in the newest prompt.
pub const PLANNER: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_PLANNER"));

/// A runner to swap in for another: `config` is JSON, at most 243 bytes, with the fields that the crate
/// `successor` names.
///
/// # Panics
/// If `config` is longer.
#[must_use]
pub fn successor(config: &str) -> Vec<u8> {
    const MARK: &[u8] = b"@@successor@@{";
    const ROOM: usize = 256 - (MARK.len() - 1);
    let mut component = include_bytes!(env!("MAINSTAY_GUEST_SUCCESSOR")).to_vec();
    let mut places = component
        .windows(MARK.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == MARK);
    let at = places.next().expect("the block is in the component").0 + MARK.len() - 1;
    assert!(places.next().is_none(), "one block");
    let padded = format!("{config:ROOM$}");
    assert_eq!(padded.len(), ROOM, "{config} is too long");
    component[at..at + ROOM].copy_from_slice(padded.as_bytes());
    component
}

/// The runner `hostile-runner`: misbehaves as the prompt says.
pub const HOSTILE_RUNNER: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_HOSTILE_RUNNER"));

/// The provider `hostile-provider`: misbehaves as the prompt says.
pub const HOSTILE_PROVIDER: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_HOSTILE_PROVIDER"));

/// The toolbox `hostile-toolbox`: misbehaves, a tool for each way.
pub const HOSTILE_TOOLBOX: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_HOSTILE_TOOLBOX"));

/// The runner `broken-runner`: breaks the promise that its option names.
pub const BROKEN_RUNNER: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_BROKEN_RUNNER"));

/// The provider `broken-provider`: breaks the promise that its option names.
pub const BROKEN_PROVIDER: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_BROKEN_PROVIDER"));

/// The toolbox `broken-toolbox`: breaks the promise that its option names.
pub const BROKEN_TOOLBOX: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_BROKEN_TOOLBOX"));

#[cfg(test)]
mod tests {
    use wasmparser::{Parser, Payload};

    use super::*;

    /// Interfaces that a component imports and exports.
    fn interfaces(component: &[u8]) -> (Vec<String>, Vec<String>) {
        let (mut imports, mut exports) = (Vec::new(), Vec::new());
        let mut depth = 0;
        for payload in Parser::new(0).parse_all(component) {
            match payload.expect("a component that parses") {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) if depth > 0 => depth -= 1,
                Payload::ComponentImportSection(section) if depth == 0 => {
                    for import in section {
                        imports.push(import.expect("an import").name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    for export in section {
                        exports.push(export.expect("an export").name.name.to_owned());
                    }
                }
                _ => {}
            }
        }
        (imports, exports)
    }

    #[track_caller]
    fn check(component: &[u8], export: &str, allowed: &[&str]) {
        let (imports, exports) = interfaces(component);
        assert_eq!(exports, [format!("mainstay:plugin/{export}@0.1.0")]);
        for import in imports {
            assert!(
                allowed.iter().any(|allowed| {
                    import == format!("mainstay:plugin/{allowed}@0.1.0")
                        || (allowed.starts_with("wasi:") && import.starts_with(allowed))
                }),
                "{import} is imported"
            );
        }
    }

    const RUNNER: [&str; 5] = ["types", "manifest", "logging", "history", "http"];
    const PROVIDER: [&str; 4] = ["types", "manifest", "logging", "http"];
    const TOOLBOX: [&str; 6] = [
        "types", "manifest", "logging", "http", "calling", "fetching",
    ];

    #[test]
    fn runners_and_providers_reach_nothing() {
        check(LOOP, "steps", &RUNNER);
        check(HOSTILE_RUNNER, "steps", &RUNNER);
        check(PLANNER, "steps", &RUNNER);
        check(&successor(r#"{"name":"a"}"#), "steps", &RUNNER);
        for provider in [OPENAI_CHAT, PARROT, HOSTILE_PROVIDER] {
            check(provider, "models", &PROVIDER);
        }
    }

    #[test]
    fn toolboxes_reach_what_they_use() {
        check(WEB, "tools", &TOOLBOX);
        let mut with_files = TOOLBOX.to_vec();
        with_files.extend(["wasi:filesystem/", "wasi:io/", "wasi:clocks/wall-clock"]);
        check(FILES, "tools", &with_files);
        check(HOSTILE_TOOLBOX, "tools", &with_files);
    }

    #[test]
    fn no_path_of_the_machine_is_in_a_component() {
        let workspace = env!("CARGO_MANIFEST_DIR").as_bytes();
        let root = &workspace[..workspace.len() - "/tests/guests".len()];
        for component in [LOOP, OPENAI_CHAT, PARROT, FILES, WEB, HOSTILE_RUNNER] {
            assert!(!component.windows(root.len()).any(|bytes| bytes == root));
        }
    }
}
