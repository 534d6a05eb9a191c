//! What a toolbox is asked for: its tools, and one call of one of them.

use std::sync::Arc;

use mainstay_core::plugin::{CallError, CallRequest, GuestError, Kind, Output, Tool, Workspace};

use super::{Loaded, Runtime};
use crate::bindings::convert;
use crate::bindings::v0_1_0::tools;
use crate::decoder::media_bytes;
use crate::host::calling::Calling;
use crate::host::fetching::Reach;
use crate::host::wasi;
use crate::inspect;
use crate::instance::{Function, Linked, Stay};
use crate::limits::Breach;

impl Runtime {
    pub(super) async fn list(
        &self,
        loaded: &Loaded,
        options: Option<String>,
    ) -> Result<Vec<Tool>, ListError> {
        let limits = &self.config.limits;
        let Linked::Toolbox(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let function = Function {
            name: "list",
            output: "tool list",
            output_bytes: limits.toolbox.tools_bytes,
        };
        let mut instance = self.pure(loaded, limits.describe(Kind::Toolbox)).await;
        let listed = instance
            .run(function, String::new(), async |store| {
                let guest = pre.instantiate_async(&mut *store).await?;
                guest
                    .mainstay_plugin_tools()
                    .call_list(store, options.as_ref())
                    .await
            })
            .await
            .map_err(|fault| ListError::Guest(fault.into()))?;
        let listed = listed.map_err(|text| ListError::Guest(instance.refused("list", text)))?;
        let listed: Vec<Tool> = convert::list(listed);
        inspect::tools(&listed, &limits.toolbox).map_err(ListError::Rule)?;
        Ok(listed)
    }

    pub(super) async fn call_tool(
        &self,
        loaded: &Loaded,
        request: CallRequest,
    ) -> Result<Vec<Output>, CallError> {
        let limits = &self.config.limits.toolbox;
        let Linked::Toolbox(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let folder = self.config.workspaces_dir.join(request.session.to_string());
        let access = self.egress.workspace(&loaded.info, &request.toolbox);
        let wasi = if access == Workspace::None {
            wasi::working(&folder, access)
        } else {
            // It opens a folder.
            tokio::task::spawn_blocking(move || wasi::working(&folder, access))
                .await
                .map_err(|error| CallError::Crashed(error.to_string()))?
        };
        let wasi = wasi.map_err(|error| {
            CallError::Crashed(format!(
                "{}: the session's workspace could not be opened: {error:#}",
                loaded.label
            ))
        })?;
        let mut instance = self
            .instance(loaded, limits.call, wasi, Stay::Lasting)
            .await;
        let guest = instance.store.data_mut();
        guest.calling = Some(Calling::new(
            request.cancel.clone(),
            request.progress.clone(),
            self.egress.redactor().clone(),
        ));
        guest.reach = Some(Reach {
            egress: Arc::clone(&self.egress),
            info: Arc::clone(&loaded.info),
            alias: request.toolbox.clone(),
            cancel: request.cancel.clone(),
        });
        let context = format!("session {} call {}", request.session, request.call.id);
        let function = Function {
            name: "call",
            output: "output",
            output_bytes: limits.text_bytes + limits.media_bytes,
        };
        let request: tools::CallRequest = convert::call_request(request);
        let answer = instance
            .run(function, context, async |store| {
                let guest = pre.instantiate_async(&mut *store).await?;
                guest
                    .mainstay_plugin_tools()
                    .call_call(store, &request)
                    .await
            })
            .await?;
        let redactor = self.egress.redactor();
        let output: Vec<Output> = match answer {
            Ok(output) => convert::list(output),
            Err(error) => {
                let error = CallError::from(error);
                return Err(cut_error(error, limits.text_bytes));
            }
        };
        let (mut text, mut media) = (0_usize, 0_usize);
        for piece in &output {
            match piece {
                Output::Text(piece) => text += piece.len(),
                Output::Media(piece) => media += media_bytes(piece),
            }
        }
        for (what, bytes, limit) in [
            ("text output", text, limits.text_bytes),
            ("media output", media, limits.media_bytes),
        ] {
            if bytes > limit {
                return Err(instance.breach("call", &Breach::output(what, limit)).into());
            }
        }
        // It never had one; but what it fetched may have been put together in its own way.
        Ok(output
            .into_iter()
            .map(|piece| match piece {
                Output::Text(text) => Output::Text(redactor.redact(&text).into_owned()),
                media @ Output::Media(_) => media,
            })
            .collect())
    }
}

pub(super) enum ListError {
    Guest(GuestError),
    Rule(inspect::Error),
}

fn cut_error(error: CallError, bytes: usize) -> CallError {
    let cut = |text: String| text[..text.floor_char_boundary(bytes)].to_owned();
    match error {
        CallError::InvalidArguments(text) => CallError::InvalidArguments(cut(text)),
        CallError::Denied(text) => CallError::Denied(cut(text)),
        CallError::Failed(text) => CallError::Failed(cut(text)),
        CallError::Cancelled(text) => CallError::Cancelled(cut(text)),
        CallError::Crashed(text) => CallError::Crashed(cut(text)),
    }
}
