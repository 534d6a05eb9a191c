//! `mainstay plugin access`: what a plugin asks for, beside what it is granted and what it has used.

use std::collections::BTreeMap;

use mainstay_core::access::{Access, Requests};
use mainstay_core::plugin::{HostPattern, HttpRule, Kind, Workspace};
use mainstay_server::PluginAdmin as _;
use owo_colors::OwoColorize as _;

use super::{Admin, asks_http, asks_secret};
use crate::access::Context;
use crate::error::{Code, Error, Result};
use crate::printer::{brief, tame};

pub(super) async fn access(context: &Context, admin: &Admin, name: Option<&str>) -> Result<()> {
    let mut reports = match admin {
        Admin::Server(client) => client.access().await?,
        Admin::Local(plugins, _) => {
            let mut reports = plugins.access().await?;
            // This process used nothing, and knows of no other.
            reports.iter_mut().for_each(|report| report.used = None);
            reports
        }
    };
    if let Some(name) = name {
        reports.retain(|report| report.alias == name);
        if reports.is_empty() {
            return Err(Error::new(
                Code::NotFound,
                format!("nothing is granted to `{name}`: it is neither a provider nor a toolbox"),
            )
            .hint("list them with `mainstay plugin access`"));
        }
    }
    for report in &reports {
        if context.printer.json {
            context.printer.value(report)?;
            continue;
        }
        for line in lines(report) {
            context.printer.line(line)?;
        }
    }
    Ok(())
}

fn lines(report: &Access) -> Vec<String> {
    let Access {
        kind,
        alias,
        name,
        asked,
        granted,
        used,
        ..
    } = report;
    let mut lines = vec![format!("{kind} {} ({})", tame(alias).bold(), tame(name))];
    let mut add = |title: &str, words: Vec<String>| {
        for (n, word) in words.iter().enumerate() {
            let title = if n == 0 { title } else { "" };
            lines.push(format!("  {title:<8} {}", tame(word)));
        }
    };
    let mut wants: Vec<String> = asked.http.iter().map(asks_http).collect();
    wants.extend(asked.secrets.iter().map(asks_secret));
    wants.extend(workspace(asked.workspace));
    add("asks for", or_nothing(wants));

    let mut given = granted.http.clone();
    if *kind == Kind::Provider && asked.http.iter().any(is_base) {
        given.push("its base URL".into());
    }
    given.extend(granted.secrets.iter().map(|(name, secret)| {
        let unset = if secret.set { "" } else { ", which is not set" };
        format!("secret `{name}` from {}{unset}", secret.from)
    }));
    given.extend(workspace(granted.workspace));
    add("granted", or_nothing(given));

    let Some(used) = used else {
        add("used", vec!["unknown: no server runs".into()]);
        return lines;
    };
    let mut done: Vec<String> = used.requests.iter().map(requests).collect();
    if used.others > 0 {
        done.push(format!("{} requests to further origins", used.others));
    }
    done.extend(times(&used.secrets));
    if used.workspace_calls > 0 {
        done.push(format!("the workspace, in {} calls", used.workspace_calls));
    }
    add("used", or_nothing(done));
    lines
}

fn is_base(rule: &HttpRule) -> bool {
    matches!(rule.host, HostPattern::BaseUrl)
}

fn requests(of: &Requests) -> String {
    let mut text = format!("{} {}: {} sent", of.method, of.origin, of.sent);
    if of.refused > 0 {
        text.push_str(&format!(", {} refused", of.refused));
    }
    if let Some(refusal) = &of.refusal {
        text.push_str(&format!(" ({})", brief(refusal, 120)));
    }
    text
}

fn times(secrets: &BTreeMap<String, u64>) -> impl Iterator<Item = String> {
    secrets
        .iter()
        .map(|(name, times)| format!("secret `{name}`, in {times} requests"))
}

pub(super) fn workspace(workspace: Workspace) -> Option<String> {
    match workspace {
        Workspace::None => None,
        Workspace::Read => Some("reading the session's workspace".into()),
        Workspace::ReadWrite => Some("reading and writing the session's workspace".into()),
    }
}

pub(super) fn or_nothing(words: Vec<String>) -> Vec<String> {
    if words.is_empty() {
        return vec!["nothing".into()];
    }
    words
}
