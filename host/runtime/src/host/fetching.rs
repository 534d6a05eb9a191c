//! `mainstay:plugin/fetching`: HTTP for toolboxes, through the egress.

use std::sync::Arc;

use mainstay_core::plugin::{EgressError, PluginInfo};
use tokio_util::sync::CancellationToken;

use super::Guest;
use crate::bindings::convert;
use crate::bindings::v0_1_0::{fetching, http};
use crate::egress::{Egress, Sender};

/// What a call needs to send requests.
pub(crate) struct Reach {
    pub(crate) egress: Arc<Egress>,
    pub(crate) info: Arc<PluginInfo>,
    pub(crate) alias: String,
    pub(crate) cancel: CancellationToken,
}

impl fetching::Host for Guest {
    async fn fetch(
        &mut self,
        request: http::Request,
    ) -> wasmtime::Result<Result<http::Response, fetching::FetchError>> {
        let Some(reach) = &self.reach else {
            return Ok(Err(fetching::FetchError::Denied(
                "requests can be sent only while a tool is called".to_owned(),
            )));
        };
        let sender = Sender::toolbox(&reach.info, &reach.alias);
        let answer = tokio::select! {
            answer = reach.egress.fetch(&sender, request.into()) => answer,
            () = reach.cancel.cancelled() => Err(EgressError::Stopped(
                "the call was cancelled".to_owned(),
            )),
        };
        Ok(match answer {
            Ok((head, body)) => Ok(convert::response(head, body)),
            Err(error) => Err(error.into()),
        })
    }
}

impl From<EgressError> for fetching::FetchError {
    fn from(error: EgressError) -> Self {
        match error {
            EgressError::Denied(text) => Self::Denied(text),
            EgressError::Invalid(text) => Self::Invalid(text),
            EgressError::Unreachable(text) => Self::Unreachable(text),
            EgressError::Broken(text) => Self::Broken(text),
            EgressError::Stopped(text) => Self::Stopped(text),
        }
    }
}
