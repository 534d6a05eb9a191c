//! `mainstay replay`: ask another runner for what a session's runners have decided, and tell where it
//! would have decided otherwise. Sessions come from the store, where nothing is written, or from
//! exports; compiled code goes into a folder that is gone afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mainstay_core::export::{ImportError, Importer};
use mainstay_core::id::SessionId;
use mainstay_core::plugin::{Kind, PluginInfo, Plugins as _};
use mainstay_core::port::{Clock as _, Store, SystemClock};
use mainstay_core::rehearse::{Difference, Error as Unasked, Part, Rehearsal, Report, Who};
use mainstay_runtime::Runtime;
use mainstay_store::{Options, SqliteStore};
use serde::Serialize;
use serde_json::Value;
use tokio::io::AsyncBufReadExt as _;

use crate::access::Context;
use crate::args::Replay;
use crate::backing::Backing;
use crate::error::{Code, Error, Result};
use crate::paths::Paths;
use crate::plugins;
use crate::printer::{Printer, tame};
use crate::wiring;

/// Characters of a value that people are shown.
const SHOWN: usize = 200;
/// Characters of what two texts have in common that are shown before their difference.
const COMMON: usize = 24;

/// What is printed with `--json`, a line for each session.
#[derive(Serialize)]
struct View<'r> {
    /// The runner that was asked.
    asked: Who,
    #[serde(flatten)]
    report: &'r Report,
    different: usize,
}

pub(crate) async fn replay(context: &Context, args: Replay) -> Result<()> {
    let paths = context.store("replay")?;
    let folder = tempfile::tempdir()
        .map_err(|error| Error::failed("cannot make a folder").because(&error))?;
    let kept = if paths.database.is_some() || paths.store.exists() {
        Some(Backing::look(&paths).await?)
    } else {
        None
    };
    let done = all(context, &args, &paths, kept.as_ref(), folder.path()).await;
    if let Some(store) = kept {
        store.close().await;
    }
    done
}

async fn all(
    context: &Context,
    args: &Replay,
    paths: &Paths,
    kept: Option<&Backing>,
    folder: &Path,
) -> Result<()> {
    let store = kept.map(Backing::port);
    let runtime = wiring::rehearsing(folder, store.clone())?;
    let runner = runner(&runtime, store.as_ref(), &args.runner).await?;
    let config = Arc::new(context.config()?.config);
    let (mut asked, mut different) = (0, 0);
    for (at, name) in args.sessions.iter().enumerate() {
        let copy = folder.join(format!("{at}.db"));
        let source = Source::open(name, paths, store.as_ref(), &copy).await?;
        let rehearsal = Rehearsal {
            plugins: Arc::clone(&runtime) as _,
            config: Arc::clone(&config),
            store: source.store(),
            runner: Arc::clone(&runner),
            own: args.own,
        };
        let report = rehearsal.session(source.session).await;
        source.close().await;
        let report = report.map_err(unasked)?;
        tell(&context.printer, &report, &runner)?;
        asked += report.decisions.len();
        different += report.different().count();
    }
    if different == 0 {
        return Ok(());
    }
    Err(Error::new(
        Code::Different,
        format!("{different} of {asked} decisions differ"),
    ))
}

fn unasked(error: Unasked) -> Error {
    match error {
        Unasked::Store(cause) => cause.into(),
        Unasked::Unknown { .. } => Error::new(Code::Config, error.to_string()),
        Unasked::Damaged { .. } => Error::new(Code::Damaged, error.to_string())
            .hint("see what else is wrong with `mainstay doctor`"),
        Unasked::Runner(_) => Error::failed("the runner cannot be asked")
            .because(std::error::Error::source(&error).unwrap_or(&error)),
    }
}

/// The runner in a file, or under a name or digest of the store.
async fn runner(
    runtime: &Runtime,
    store: Option<&Arc<dyn Store>>,
    name: &str,
) -> Result<Arc<PluginInfo>> {
    let path = Path::new(name);
    let info = if path.is_file() {
        let bytes = plugins::read(path).map_err(|error| {
            Error::new(Code::NotFound, format!("cannot read {name}")).because(&error)
        })?;
        let installed = runtime.install(&bytes).await;
        installed.map_err(|error| Error::from(wiring::refused(error)))?
    } else {
        let found = match store {
            Some(store) => installed(store, name).await?,
            None => None,
        };
        let found = match found {
            Some(digest) => runtime.info(&digest).await.map_err(|error| {
                Error::new(Code::Unavailable, "the runner cannot be read").because(&*error)
            })?,
            None => None,
        };
        found.ok_or_else(|| {
            Error::new(
                Code::NotFound,
                format!("`{name}` is neither a file nor an installed runner"),
            )
            .hint("list the plugins with `mainstay plugin list`")
        })?
    };
    if info.kind != Kind::Runner {
        return Err(Error::new(
            Code::Usage,
            format!("`{name}` is a {} and no runner", info.kind),
        ));
    }
    Ok(info)
}

async fn installed(store: &Arc<dyn Store>, name: &str) -> Result<Option<String>> {
    let aliases = store.aliases().await?;
    let mut named = aliases
        .into_iter()
        .filter(|alias| alias.kind == Kind::Runner && alias.alias == name);
    if let Some(alias) = named.next() {
        return Ok(Some(alias.digest));
    }
    let all = store.plugins().await?;
    let mut digests = all
        .into_iter()
        .filter(|info| info.kind == Kind::Runner && info.digest.starts_with(name));
    // A beginning that is too short may be of others tomorrow.
    Ok(digests
        .next()
        .filter(|_| name.len() >= 8)
        .map(|info| info.digest))
}

/// Where one session is.
struct Source {
    session: SessionId,
    store: Arc<dyn Store>,
    /// Made of an export.
    copy: Option<Arc<SqliteStore>>,
}

impl Source {
    async fn open(
        name: &str,
        paths: &Paths,
        store: Option<&Arc<dyn Store>>,
        copy: &Path,
    ) -> Result<Self> {
        if let Ok(session) = name.parse() {
            let store = store.cloned().ok_or_else(|| {
                Error::from(mainstay_store::OpenError::Missing {
                    file: paths.store.clone(),
                })
            })?;
            return Ok(Self {
                session,
                store,
                copy: None,
            });
        }
        let file = Path::new(name);
        if !file.is_file() {
            return Err(Error::new(
                Code::NotFound,
                format!("`{name}` is neither a session nor a file"),
            )
            .hint("name a session by its id, or a file that `mainstay session export` wrote"));
        }
        let store = Arc::new(SqliteStore::open(copy, Options::default()).await?);
        match import(&store, file).await {
            Ok(session) => Ok(Self {
                session,
                store: Arc::clone(&store) as _,
                copy: Some(store),
            }),
            Err(error) => {
                store.close().await;
                Err(error)
            }
        }
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    async fn close(self) {
        if let Some(copy) = self.copy {
            copy.close().await;
        }
    }
}

async fn import(store: &Arc<SqliteStore>, file: &Path) -> Result<SessionId> {
    let unreadable = |error: std::io::Error| Error::unreadable(file, &error);
    let refused = |error: ImportError| Error::from_import(file, error);
    let at = SystemClock::default().wall();
    let mut importer = Importer::into_store(Arc::clone(store) as _, at, true);
    let opened = tokio::fs::File::open(file).await.map_err(unreadable)?;
    let mut lines = tokio::io::BufReader::new(opened).lines();
    while let Some(line) = lines.next_line().await.map_err(unreadable)? {
        importer.line(&line).await.map_err(refused)?;
    }
    let imported = importer.finish().await.map_err(refused)?;
    match (imported.session, imported.refused) {
        (Some(session), None) => Ok(session),
        (_, refusal) => {
            let error = Error::new(
                Code::Usage,
                format!("{} cannot be read to its end", file.display()),
            );
            Err(match refusal {
                Some(refusal) => error.because(&refusal),
                None => error,
            })
        }
    }
}

fn tell(printer: &Printer, report: &Report, runner: &PluginInfo) -> Result<()> {
    for note in &report.notes {
        printer.note(format!("{}: {}", report.session, tame(note)));
    }
    let different = report.different().count();
    if printer.json {
        printer.value(&View {
            asked: Who {
                name: runner.name.clone(),
                digest: runner.digest.clone(),
            },
            report,
            different,
        })?;
        return Ok(());
    }
    printer.line(format!(
        "{}: {different} of {} decisions differ",
        report.session,
        report.decisions.len()
    ))?;
    for compared in &report.decisions {
        if let Some(difference) = &compared.difference {
            printer.line(format!(
                "  seq {}, by {}",
                compared.seq,
                by(&compared.runner)
            ))?;
            for line in lines(difference) {
                printer.line(format!("    {}", tame(&line)))?;
            }
        }
    }
    let mut runners: BTreeMap<&Who, (usize, usize)> = BTreeMap::new();
    for compared in &report.decisions {
        let (all, otherwise) = runners.entry(&compared.runner).or_default();
        *all += 1;
        *otherwise += usize::from(compared.difference.is_some());
    }
    for (who, (all, otherwise)) in runners {
        printer.line(format!("  by {}: {otherwise} of {all}", by(who)))?;
    }
    Ok(())
}

fn by(who: &Who) -> String {
    let digest = who.digest.get(..12).unwrap_or(&who.digest);
    format!("{} sha256:{digest}", tame(&who.name))
}

/// Both decisions by their kind, and where they part.
fn lines(difference: &Difference) -> Vec<String> {
    let mut lines = vec![
        format!("recorded  {}", kinds(&difference.recorded)),
        format!("new       {}", kinds(&difference.new)),
    ];
    lines.extend(
        difference
            .refused
            .iter()
            .map(|reason| format!("          which the host would refuse: {reason}")),
    );
    lines.extend(difference.parts.iter().map(part));
    lines
}

/// `say, call model` for example.
fn kinds(decision: &Value) -> String {
    let tag = |value: &Value| {
        let tag = match value {
            Value::Object(fields) => fields.keys().next().cloned(),
            other => other.as_str().map(str::to_owned),
        };
        tag.unwrap_or_default().replace('_', " ")
    };
    if decision.get("failed").is_some() {
        return "failed".into();
    }
    let entries = decision["entries"].as_array().into_iter().flatten();
    let all: Vec<String> = entries.chain([&decision["action"]]).map(tag).collect();
    all.join(", ")
}

fn part(part: &Part) -> String {
    let path = match part.path.as_str() {
        "" => String::new(),
        path => format!("{path}: "),
    };
    let (recorded, new) = match (&part.recorded, &part.new) {
        (Some(Value::String(a)), Some(Value::String(b))) => texts(a, b),
        (a, b) => (value(a.as_ref()), value(b.as_ref())),
    };
    format!("{path}{recorded} → {new}")
}

fn value(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".into(), |value| cut(&value.to_string()))
}

/// Two texts from shortly before where they part.
fn texts(a: &str, b: &str) -> (String, String) {
    let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    let from = |text: &str| {
        let skipped = common.saturating_sub(COMMON);
        let rest: String = text.chars().skip(skipped).collect();
        let rest = cut(&Value::from(rest).to_string());
        if skipped == 0 {
            rest
        } else {
            format!("…{rest}")
        }
    };
    (from(a), from(b))
}

fn cut(text: &str) -> String {
    let mut rest = text.chars();
    let shown: String = rest.by_ref().take(SHOWN).collect();
    match rest.count() {
        0 => shown,
        more => format!("{shown}… ({more} more)"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plugin_17_long_texts_are_shown_where_they_part() {
        let long = "x".repeat(300);
        let (a, b) = (format!("{long}one"), format!("{long}two"));
        let shown = part(&Part {
            path: "entries[0].say[0].text".into(),
            recorded: Some(a.into()),
            new: Some(b.into()),
        });
        let end = "x".repeat(COMMON);
        assert_eq!(
            shown,
            format!(r#"entries[0].say[0].text: …"{end}one" → …"{end}two""#)
        );
    }

    #[test]
    fn plugin_13_a_difference_names_both_decisions_and_where_they_part() {
        let recorded =
            json!({ "entries": [{ "say": [] }], "action": { "call_model": { "tools": "all" } } });
        let new = json!({ "entries": [], "action": "done" });
        let difference = Difference {
            parts: mainstay_core::rehearse::differences(&recorded, &new),
            recorded,
            new,
            refused: None,
        };
        assert_eq!(
            lines(&difference),
            [
                "recorded  say, call model",
                "new       done",
                r#"action: {"call_model":{"tools":"all"}} → "done""#,
                r#"entries[0]: {"say":[]} → nothing"#,
            ]
        );
        assert_eq!(kinds(&json!({ "failed": "it trapped" })), "failed");
    }
}
