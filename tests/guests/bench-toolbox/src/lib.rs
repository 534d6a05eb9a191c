//! The toolbox of the standard turn: one `pure` tool, `thing`, that gives 300 bytes.

use mainstay_guest::Toolbox;
use mainstay_guest::manifest;
use mainstay_guest::toolbox::{
    CallError, CallRequest, Effect, Host, Output, Tool, ToolboxManifest,
};

struct Bench;

mainstay_guest::toolbox!(Bench);

/// Bytes of a result.
const RESULT_BYTES: usize = 300;

impl Toolbox for Bench {
    fn manifest() -> ToolboxManifest {
        manifest::toolbox(
            "bench-toolbox",
            env!("CARGO_PKG_VERSION"),
            "Gives a result of a fixed size",
        )
    }

    fn tools(_: Option<&str>) -> Result<Vec<Tool>, String> {
        Ok(vec![Tool::new(
            "thing",
            Effect::Pure,
            "Gives 300 bytes",
            r#"{"type":"object"}"#,
        )])
    }

    fn call(_: &CallRequest, _: &dyn Host) -> Result<Vec<Output>, CallError> {
        Ok(Output::text("x".repeat(RESULT_BYTES)))
    }
}
