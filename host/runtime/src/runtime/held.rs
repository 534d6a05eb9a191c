//! What guests hand over, held to its limits.

use mainstay_core::plugin::{Decision, GuestError, HttpRequest};

use super::cut;
use crate::bindings::v0_1_0::steps;
use crate::instance::Instance;
use crate::limits::{Breach, RunnerLimits};

/// What a runner answered, held to its limits.
pub(super) fn decision(
    limits: &RunnerLimits,
    instance: &Instance,
    answer: Result<steps::Decision, steps::DecideError>,
) -> Result<Decision, GuestError> {
    let decision: Decision = match answer {
        Ok(decision) => decision.into(),
        Err(steps::DecideError::State(text)) => {
            return Err(instance.refused("decide", format_args!("its state: {}", cut(&text))));
        }
        Err(steps::DecideError::Options(text)) => {
            return Err(instance.refused("decide", format_args!("its options: {}", cut(&text))));
        }
        Err(steps::DecideError::Failed(text)) => {
            return Err(instance.refused("decide", cut(&text)));
        }
    };
    let state = decision.state.as_ref().map_or(0, Vec::len);
    if state > limits.state_bytes {
        let breach = Breach::output("state", limits.state_bytes);
        return Err(instance.breach("decide", &breach).into());
    }
    if json_bytes(&decision) + state > limits.decision_bytes {
        let breach = Breach::output("decision", limits.decision_bytes);
        return Err(instance.breach("decide", &breach).into());
    }
    Ok(decision)
}

pub(super) fn request_bytes(request: &HttpRequest) -> usize {
    use mainstay_core::plugin::{Chunk, HeaderValue};
    let headers = request.headers.iter().map(|(name, value)| {
        name.len()
            + match value {
                HeaderValue::Text(text) => text.len(),
                HeaderValue::Secret { name, prefix } => name.len() + prefix.len(),
            }
    });
    let body = request.body.iter().map(|chunk| match chunk {
        Chunk::Bytes(bytes) => bytes.len(),
        Chunk::MediaBase64(digest) | Chunk::Media(digest) => digest.len(),
    });
    request.method.len() + request.url.len() + headers.chain(body).sum::<usize>()
}

/// What a decision takes in the log.
fn json_bytes(decision: &Decision) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, decision) {
        Ok(()) => counter.0,
        Err(_) => usize::MAX / 2,
    }
}
