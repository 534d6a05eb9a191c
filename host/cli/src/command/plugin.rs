//! `mainstay plugin`: look at plugins and change them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mainstay_core::plugin::{HostPattern, HttpRule, PluginInfo, Scheme, SecretRule};
use mainstay_core::port::Store;
use mainstay_registry::{Reference, SCHEME};
use mainstay_server::PluginAdmin as _;
use mainstay_server::wire::Plugin as View;
use mainstay_store::{Options, SqliteStore};
use owo_colors::OwoColorize as _;

use crate::access::{Context, Way};
use crate::args::Plugin;
use crate::client::Client;
use crate::error::{Code, Error, Result};
use crate::plugins::{self, Plugins};
use crate::printer::{brief, tame};

mod access;
mod author;
mod build;
mod check;
mod foreign;
mod new;
mod test;

/// Who answers for the plugins.
enum Admin {
    Server(Client),
    Local(Box<Plugins>, Arc<SqliteStore>),
}

pub(crate) async fn plugin(context: &Context, args: Plugin) -> Result<()> {
    let args = match args {
        Plugin::New(args) => return new::new(context, &args),
        Plugin::Build(args) => return build::build(context, args).await,
        Plugin::Check(args) => return check::check(context, args).await,
        Plugin::Test(args) => return test::test(context, args).await,
        args => args,
    };
    if let Plugin::Inspect { plugin } = &args
        && let Some(bytes) = fetch(context, plugin).await?
    {
        // What is not installed is looked at without a store.
        let info = plugins::inspect(bytes).await?;
        return show(
            context,
            &View {
                info,
                aliases: Vec::new(),
                sources: BTreeMap::new(),
            },
        );
    }
    let admin = match context.way().await? {
        Way::Server(client) => Admin::Server(client),
        Way::File(paths) => {
            paths.create()?;
            let store = Arc::new(SqliteStore::open(&paths.store, Options::default()).await?);
            let plugins = Plugins::new(
                &paths,
                &context.config()?,
                Arc::clone(&store) as Arc<dyn Store>,
            )?;
            plugins.install_shipped().await?;
            Admin::Local(Box::new(plugins), store)
        }
    };
    let done = act(context, &admin, args).await;
    if let Admin::Local(_, store) = admin {
        store.close().await;
    }
    done
}

async fn act(context: &Context, admin: &Admin, args: Plugin) -> Result<()> {
    let printer = &context.printer;
    match args {
        Plugin::New(_) | Plugin::Build(_) | Plugin::Check(_) | Plugin::Test(_) => {
            unreachable!("these need no store")
        }
        Plugin::List => {
            for plugin in all(admin).await? {
                if printer.json {
                    printer.value(&plugin)?;
                } else {
                    printer.line(line(&plugin))?;
                }
            }
        }
        Plugin::Inspect { plugin: name } => {
            let found = all(admin).await?.into_iter().find(|plugin| {
                plugin.aliases.contains(&name)
                    || (name.len() >= 8 && plugin.info.digest.starts_with(&name))
            });
            let found = found.ok_or_else(|| {
                Error::new(
                    Code::NotFound,
                    format!("`{name}` is neither a file nor an installed plugin"),
                )
                .hint("list the plugins with `mainstay plugin list`")
            })?;
            show(context, &found)?;
        }
        Plugin::Access { name } => access::access(context, admin, name.as_deref()).await?,
        Plugin::Install { source, alias } => {
            let plugin = if source.starts_with(SCHEME) {
                printer.dim("fetching, checking and compiling …");
                match admin {
                    Admin::Server(client) => client.load(&source, alias.as_deref()).await?,
                    Admin::Local(plugins, _) => plugins.load(&source, alias).await?,
                }
            } else {
                let bytes = read(&source)?;
                printer.dim("checking and compiling …");
                match admin {
                    Admin::Server(client) => client.install(bytes, alias.as_deref()).await?,
                    Admin::Local(plugins, _) => plugins.install(bytes, alias).await?,
                }
            };
            if printer.json {
                printer.value(&plugin)?;
            } else {
                let names = plugin.aliases.join(", ");
                printer.note(format!(
                    "installed {} {} {} as {names}",
                    plugin.info.kind, plugin.info.name, plugin.info.version
                ));
            }
        }
        Plugin::Remove { kind, alias } => {
            match admin {
                Admin::Server(client) => client.remove(kind, &alias).await?,
                Admin::Local(plugins, _) => plugins.remove(kind, &alias).await?,
            }
            if printer.json {
                printer
                    .value(&serde_json::json!({ "removed": { "kind": kind, "alias": alias } }))?;
            } else {
                printer.note(format!(
                    "removed the name `{}`; `mainstay gc` removes the component once nothing needs it",
                    tame(&alias)
                ));
            }
        }
        Plugin::Alias {
            kind,
            alias,
            digest,
        } => {
            let plugin = match admin {
                Admin::Server(client) => client.alias(kind, &alias, &digest).await?,
                Admin::Local(plugins, _) => plugins.alias(kind, &alias, &digest).await?,
            };
            if printer.json {
                printer.value(&plugin)?;
            } else {
                printer.note(format!(
                    "`{}` is now {} {}",
                    tame(&alias),
                    plugin.info.name,
                    plugin.info.version
                ));
            }
        }
    }
    Ok(())
}

async fn all(admin: &Admin) -> Result<Vec<View>> {
    Ok(match admin {
        Admin::Server(client) => client.plugins().await?,
        Admin::Local(plugins, _) => plugins.list().await?,
    })
}

/// The bytes of what is not installed: an artifact in a registry, or a file if there is one.
async fn fetch(context: &Context, source: &str) -> Result<Option<Vec<u8>>> {
    if source.starts_with(SCHEME) {
        let reference: Result<Reference, _> = source.parse();
        let reference = reference.map_err(|error| Error::new(Code::Usage, error.to_string()))?;
        return plugins::fetch(&context.config()?, &reference)
            .await
            .map(Some);
    }
    if Path::new(source).is_file() {
        return read(source).map(Some);
    }
    Ok(None)
}

fn read(file: &str) -> Result<Vec<u8>> {
    plugins::read(Path::new(file)).map_err(|error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let told = Error::new(Code::NotFound, format!("cannot read {file}")).because(&error);
        let reference = format!("{SCHEME}{file}");
        if missing && reference.parse::<Reference>().is_ok() {
            return told.hint(format!("if it is in a registry, write `{reference}`"));
        }
        told
    })
}

fn line(plugin: &View) -> String {
    let info = &plugin.info;
    let names = if plugin.aliases.is_empty() {
        "-".to_owned()
    } else {
        plugin.aliases.join(",")
    };
    let kind = info.kind.to_string();
    let mut sources: Vec<&str> = plugin.sources.values().map(String::as_str).collect();
    sources.dedup();
    let from = if sources.is_empty() {
        String::new()
    } else {
        format!("  from {}", sources.join(", "))
    };
    format!(
        "{kind:<9} {names:<16} {:<20} {:<8} {}  {}{from}",
        info.name,
        info.version,
        &info.digest[..12],
        brief(&info.summary, 60)
    )
}

fn show(context: &Context, plugin: &View) -> Result<()> {
    let printer = &context.printer;
    if printer.json {
        printer.value(plugin)?;
        return Ok(());
    }
    let PluginInfo {
        digest,
        kind,
        name,
        version,
        summary,
        wit,
        size,
        ..
    } = &plugin.info;
    printer.line(format!("{} {} {version}", kind, tame(name).bold()))?;
    printer.line(format!("  {}", tame(summary)))?;
    printer.line(format!("digest    {digest}"))?;
    printer.line(format!(
        "built for mainstay:plugin@{wit}, {} KiB",
        size / 1024
    ))?;
    if !plugin.aliases.is_empty() {
        printer.line(format!("names     {}", plugin.aliases.join(", ")))?;
    }
    for (alias, source) in &plugin.sources {
        printer.line(format!("source    {alias} from {source}"))?;
    }
    printer.line(format!(
        "asks for  {}",
        asks(&plugin.info).join("\n          ")
    ))?;
    for model in &plugin.info.models {
        printer.line(format!("model     {}", tame(&model.id)))?;
    }
    for tool in &plugin.info.tools {
        let effect = format!("{:?}", tool.effect).to_lowercase();
        printer.line(format!(
            "tool      {} ({effect}): {}",
            tool.definition.name,
            brief(&tool.definition.description, 80)
        ))?;
    }
    Ok(())
}

/// What a plugin wants that an operator has to grant.
fn asks(info: &PluginInfo) -> Vec<String> {
    let mut asks: Vec<String> = info.http.iter().map(asks_http).collect();
    asks.extend(info.secrets.iter().map(asks_secret));
    asks.extend(access::workspace(info.workspace));
    access::or_nothing(asks)
}

fn asks_http(rule: &HttpRule) -> String {
    let methods = if rule.methods.is_empty() {
        "any method".into()
    } else {
        rule.methods.join("/")
    };
    let scheme = if rule.scheme == Scheme::Https {
        "https"
    } else {
        "http"
    };
    let port = rule.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!(
        "{scheme}, {methods} to {}{port}{}",
        host(&rule.host),
        rule.path_prefix
    )
}

fn asks_secret(secret: &SecretRule) -> String {
    let hosts: Vec<String> = secret.hosts.iter().map(host).collect();
    let must = if secret.required {
        ""
    } else {
        ", if there is one"
    };
    format!(
        "secret `{}` for {}{must}: {}",
        secret.name,
        hosts.join(", "),
        brief(&secret.purpose, 80)
    )
}

fn host(host: &HostPattern) -> String {
    match host {
        HostPattern::Name(name) => name.clone(),
        HostPattern::Subdomains(name) => format!("*.{name}"),
        HostPattern::BaseUrl => "its base URL".into(),
        HostPattern::Any => "any host".into(),
    }
}
