//! `[limits]` of the configuration: what guests may use, over the limits of the plugin contract.

use std::time::Duration;

use mainstay_runtime::limits::{Limits, Use};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::config::span;

/// What one guest can have of memory at all, whatever is configured.
const MEMORY_MAX: usize = 256 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct LimitsTable {
    runner: RunnerTable,
    provider: ProviderTable,
    toolbox: ToolboxTable,
    log_lines: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct RunnerTable {
    memory: Option<Bytes>,
    cpu: Option<Time>,
    wall: Option<Time>,
    decision: Option<Bytes>,
    state: Option<Bytes>,
    history: Option<Bytes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct ProviderTable {
    memory: Option<Bytes>,
    cpu: Option<Time>,
    wall: Option<Time>,
    request: Option<Bytes>,
    answer: Option<Bytes>,
    event: Option<Bytes>,
    events_per_second: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct ToolboxTable {
    memory: Option<Bytes>,
    cpu: Option<Time>,
    wall: Option<Time>,
    output: Option<Bytes>,
    media: Option<Bytes>,
}

impl LimitsTable {
    /// # Errors
    /// A limit that cannot be kept, in words for whoever wrote the file.
    pub(crate) fn limits(&self) -> Result<Limits, String> {
        let mut limits = Limits::default();
        let table = &self.runner;
        let runner = &mut limits.runner;
        apply(&mut runner.decide, table.memory, table.cpu, table.wall)?;
        set(&mut runner.decision_bytes, table.decision);
        set(&mut runner.state_bytes, table.state);
        if let Some(history) = table.history {
            runner.history_bytes = history.0 as u64;
        }
        let table = &self.provider;
        let provider = &mut limits.provider;
        for used in [&mut provider.encode, &mut provider.decode] {
            apply(used, table.memory, table.cpu, table.wall)?;
        }
        set(&mut provider.exchange_bytes, table.request);
        set(&mut provider.events_bytes, table.answer);
        set(&mut provider.event_bytes, table.event);
        provider.events_per_s = table.events_per_second.unwrap_or(provider.events_per_s);
        let table = &self.toolbox;
        let toolbox = &mut limits.toolbox;
        apply(&mut toolbox.call, table.memory, table.cpu, table.wall)?;
        set(&mut toolbox.text_bytes, table.output);
        set(&mut toolbox.media_bytes, table.media);
        limits.logging.lines = self.log_lines.unwrap_or(limits.logging.lines);
        Ok(limits)
    }
}

fn set(limit: &mut usize, to: Option<Bytes>) {
    *limit = to.map_or(*limit, |bytes| bytes.0);
}

fn apply(
    used: &mut Use,
    memory: Option<Bytes>,
    cpu: Option<Time>,
    wall: Option<Time>,
) -> Result<(), String> {
    set(&mut used.memory_bytes, memory);
    used.cpu = cpu.map_or(used.cpu, |time| time.0);
    used.wall = wall.map_or(used.wall, |time| time.0);
    if used.memory_bytes > MEMORY_MAX {
        return Err("a guest has at most `256MiB` of memory".to_owned());
    }
    if used.cpu < Duration::from_millis(10) || used.wall < Duration::from_millis(10) {
        return Err("`cpu` and `wall` are at least `10ms`".to_owned());
    }
    Ok(())
}

/// A size such as `512KiB` or `64MiB`.
#[derive(Clone, Copy, Debug)]
struct Bytes(usize);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        bytes(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!("`{text}` is no size: write `512KiB` or `64MiB`"))
        })
    }
}

fn bytes(text: &str) -> Option<usize> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let number: usize = text[..unit].parse().ok()?;
    let factor = match &text[unit..] {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// A time such as `500ms` or `5m`.
#[derive(Clone, Copy, Debug)]
struct Time(Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        span(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!("`{text}` is no time: write `500ms`, `30s` or `5m`"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Limits, String> {
        let table: LimitsTable =
            toml::from_str(text).map_err(|error| error.message().to_owned())?;
        table.limits()
    }

    #[test]
    fn what_is_set_lies_over_the_contracts_limits() {
        let limits = read(
            "log-lines = 10\n[provider]\nevent = \"2MiB\"\n\
             [toolbox]\ncpu = \"1m\"\nmemory = \"128MiB\"\n",
        )
        .expect("right");
        let contract = Limits::default();
        assert_eq!(limits.logging.lines, 10);
        assert_eq!(limits.toolbox.call.cpu, Duration::from_secs(60));
        assert_eq!(limits.toolbox.call.memory_bytes, 128 << 20);
        assert_eq!(limits.toolbox.call.wall, contract.toolbox.call.wall);
        assert_eq!(limits.provider.event_bytes, 2 << 20);
        assert_eq!(limits.runner.state_bytes, contract.runner.state_bytes);
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for (text, words) in [
            ("[runner]\nmemory = \"1024MiB\"", "at most `256MiB`"),
            ("[runner]\nmemory = \"64MB\"", "`64MB` is no size"),
            ("[toolbox]\ncpu = \"0s\"", "at least `10ms`"),
            ("[toolbox]\ncpus = \"1s\"", "cpus"),
        ] {
            let error = read(text).expect_err("wrong");
            assert!(error.contains(words), "{error}");
        }
    }
}
