//! One tool that gives its arguments and the key of its call back.

wit_bindgen::generate!({ path: "wit/0.1.0", world: "toolbox" });

use exports::mainstay::plugin::tools::{
    CallError, CallRequest, Effect, Guest, Output, Tool, ToolDefinition, ToolboxManifest,
};
use mainstay::plugin::calling::{cancelled, progress};
use mainstay::plugin::manifest::{Plugin, WorkspaceAccess};

struct Golden;

impl Guest for Golden {
    fn describe() -> ToolboxManifest {
        ToolboxManifest {
            plugin: Plugin {
                name: "golden-toolbox".to_owned(),
                version: "0.1.0".to_owned(),
                summary: "Built for the first version of the contract".to_owned(),
                options_schema: None,
            },
            http: vec![],
            secrets: vec![],
            workspace: WorkspaceAccess::None,
        }
    }

    fn list(_: Option<String>) -> Result<Vec<Tool>, String> {
        Ok(vec![Tool {
            definition: ToolDefinition {
                name: "golden_echo".to_owned(),
                description: "Gives its arguments back".to_owned(),
                input_schema: r#"{"type":"object"}"#.to_owned(),
            },
            effect: Effect::Idempotent,
        }])
    }

    fn call(request: CallRequest) -> Result<Vec<Output>, CallError> {
        progress("echoing");
        if cancelled() {
            return Err(CallError::Cancelled("nothing was done".to_owned()));
        }
        if request.arguments == "{}" {
            return Err(CallError::InvalidArguments(
                "there is nothing to echo".to_owned(),
            ));
        }
        Ok(vec![
            Output::Text(request.arguments),
            Output::Text(request.idempotency_key),
        ])
    }
}

export!(Golden);
