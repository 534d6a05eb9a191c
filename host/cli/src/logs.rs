//! The log on stderr.

use std::io::{self, Write as _};
use std::sync::{Arc, OnceLock};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::args::{Global, LogFormat};
use crate::error::{Code, Error, Result};

/// Takes secrets out of a line.
pub(crate) type Redact = Arc<dyn Fn(&str) -> String + Send + Sync>;

static REDACT: OnceLock<Redact> = OnceLock::new();

/// From now on secrets are taken out of every line.
pub(crate) fn redact(redact: Redact) {
    // The first host of the process has said what its secrets are.
    let _ = REDACT.set(redact);
}

/// Begins to log. `usual` is what is logged where nothing else is asked for.
pub(crate) fn begin(global: &Global, usual: &str) -> Result<()> {
    let filter = global.log.as_deref().unwrap_or(usual);
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Error::new(Code::Usage, format!("`{filter}` is no log filter"))
            .because(&error)
            .hint("write a level, or `target=level` pairs: `--log info,mainstay_core=debug`")
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Lines)
        .with_ansi(false);
    let begun = match global.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    begun.map_err(|error| Error::failed("cannot begin to log").because(&*error))
}

/// Writes whole lines, secrets taken out.
struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Vec::new())
    }
}

struct Line(Vec<u8>);

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        let text = REDACT
            .get()
            .map_or_else(|| text.to_string(), |redact| redact(&text));
        // A log that cannot be written has nowhere to say so.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}
