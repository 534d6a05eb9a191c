//! Opens the session that a command names: a new one, a named one, the most recent one.

use mainstay_core::history::ModelRef;
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::port::Store as _;
use mainstay_server::wire::{ModelName, NewSession, Session};

use crate::access::{self, Context, Way};
use crate::args::Choice;
use crate::client::Client;
use crate::config::{self, Loaded, OPENAI, nearest};
use crate::error::{Code, Error, Result};
use crate::host::{Host, Listen};

/// A session and the way to it.
pub(crate) struct Opened {
    pub(crate) client: Client,
    /// If this process owns the store.
    pub(crate) host: Option<Host>,
    pub(crate) session: Session,
    /// Seq behind which nothing has been shown to anybody here.
    pub(crate) after: Seq,
    /// It existed before.
    pub(crate) existed: bool,
}

/// Opens the chosen session; `title` is for a new one.
pub(crate) async fn open(
    context: &Context,
    choice: &Choice,
    title: Option<String>,
) -> Result<Opened> {
    let mut loaded = context.config()?;
    let way = context.way().await?;
    if choice.base_url.is_some() && matches!(way, Way::Server(_)) {
        return Err(Error::new(Code::Usage, "`--base-url` has no effect: a server owns the store")
            .hint("write the provider into the server's mainstay.toml, or name another file with `--store`"));
    }
    let model = model(&mut loaded, choice)?;
    let (client, host, before) = match way {
        Way::Server(client) => (client, None, None),
        Way::File(paths) => {
            let provider = model.as_ref().map(|model| &model.provider);
            let agent = loaded
                .config
                .agents
                .get(choice.agent.as_deref().unwrap_or(config::AGENT));
            if let Some(provider) = provider.or(agent.map(|agent| &agent.model.provider)) {
                check_key(&loaded, provider)?;
            }
            // Read before this process goes on with what was left, so that none of it is missed.
            let before = if choice.resume || choice.session.is_some() {
                let store = access::read(&paths).await?;
                let before = before(&store, choice.session).await;
                store.close().await;
                Some(before?)
            } else {
                None
            };
            let host =
                Host::start(&paths, loaded, Listen::local(context.global.token.clone())).await?;
            (context.client(&host.address)?, Some(host), before)
        }
    };
    match enter(&client, choice, model, title, before).await {
        Ok((session, after, existed)) => Ok(Opened {
            client,
            host,
            session,
            after,
            existed,
        }),
        Err(error) => {
            if let Some(host) = host {
                host.shutdown(std::future::ready(())).await;
            }
            Err(error)
        }
    }
}

async fn enter(
    client: &Client,
    choice: &Choice,
    model: Option<ModelRef>,
    title: Option<String>,
    before: Option<(SessionId, Seq)>,
) -> Result<(Session, Seq, bool)> {
    let named = match (choice.session, before) {
        (Some(id), _) | (None, Some((id, _))) => Some(id),
        (None, None) if choice.resume => {
            let recent = client
                .sessions(100)
                .await?
                .items
                .into_iter()
                .max_by_key(|session| session.updated_at);
            Some(recent.ok_or_else(no_session)?.id)
        }
        (None, None) => None,
    };
    let Some(id) = named else {
        let new = NewSession {
            id: Some(SessionId::new()),
            agent: choice.agent.clone(),
            model: model.map(ModelName::Apart),
            title,
            resume: None,
        };
        let session = client.create(&new).await?;
        let after = session.head;
        return Ok((session, after, false));
    };
    let session = client.session(id).await?;
    if let Some(agent) = choice
        .agent
        .as_ref()
        .filter(|agent| **agent != session.agent)
    {
        return Err(Error::new(
            Code::Usage,
            format!(
                "session {id} has the agent `{}`, not `{agent}`",
                session.agent
            ),
        )
        .hint("leave `--agent` out, or begin another session"));
    }
    let after = before.map_or(session.head, |(_, head)| head);
    if let Some(model) = model.filter(|model| session.model.as_ref() != Some(model)) {
        client.configure(id, model).await?;
    }
    Ok((session, after, true))
}

/// The named or most recent session and its head, from the file.
async fn before(
    store: &mainstay_store::SqliteStore,
    named: Option<SessionId>,
) -> Result<(SessionId, Seq)> {
    if let Some(id) = named {
        let tail = store.tail(id).await?.ok_or_else(|| access::unknown(id))?;
        return Ok((id, tail.session.head));
    }
    let listed = store.sessions(None, 100).await?;
    let recent = listed
        .into_iter()
        .max_by_key(|listed| listed.session.updated_at)
        .ok_or_else(no_session)?;
    Ok((recent.session.id, recent.session.head))
}

fn no_session() -> Error {
    Error::new(Code::NotFound, "there is no session to go on with")
        .hint("begin one with `mainstay run \"…\"`")
}

/// The model that the flags name, if they name one. Checks the names and applies the base URL.
fn model(loaded: &mut Loaded, choice: &Choice) -> Result<Option<ModelRef>> {
    let config = &loaded.config;
    if let Some(agent) = choice
        .agent
        .as_ref()
        .filter(|agent| !config.agents.contains_key(*agent))
    {
        return Err(unknown_name("agent", agent, config.agents.keys()));
    }
    let (mut provider, mut model) = (choice.provider.clone(), choice.model.clone());
    if provider.is_none()
        && let Some((first, rest)) = choice
            .model
            .as_deref()
            .and_then(|model| model.split_once('/'))
        && config.providers.contains_key(first)
    {
        (provider, model) = (Some(first.to_owned()), Some(rest.to_owned()));
    }
    if provider.is_none() && choice.base_url.is_some() {
        provider = Some(OPENAI.into());
    }
    let existing = choice.resume || choice.session.is_some();
    if provider.is_none() {
        if model.is_none() {
            return Ok(None);
        }
        // A model alone is one of the agent's own provider.
        let agent = choice.agent.as_deref().unwrap_or(config::AGENT);
        provider = config
            .agents
            .get(agent)
            .map(|agent| agent.model.provider.clone());
    }
    let provider = provider.unwrap_or_else(|| config::PARROT.into());
    let Some(configured) = loaded.config.providers.get_mut(&provider) else {
        return Err(unknown_name(
            "provider",
            &provider,
            loaded.config.providers.keys(),
        ));
    };
    if let Some(url) = &choice.base_url {
        let access = loaded.providers.entry(provider.clone()).or_default();
        config::set_base_url(configured, access, url)
            .map_err(|cause| Error::new(Code::Usage, "the base URL is wrong").cause(cause))?;
        if existing && choice.provider.is_none() && model.is_none() {
            return Ok(None);
        }
    }
    match model.or_else(|| loaded.models.get(&provider).cloned()) {
        Some(model) => Ok(Some(ModelRef { provider, model })),
        None => Err(Error::new(
            Code::Usage,
            format!("the provider `{provider}` has no model of its own"),
        )
        .hint("name one with `--model`")),
    }
}

fn unknown_name<'n>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'n String> + Clone,
) -> Error {
    let hint = match nearest(name, known.clone().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = known.map(String::as_str).collect();
            format!(
                "configured are {}; add others to mainstay.toml",
                known.join(", ")
            )
        }
    };
    Error::new(Code::Config, format!("there is no {what} `{name}`")).hint(hint)
}

/// Asking OpenAI without a key would fail only after the session began.
fn check_key(loaded: &Loaded, provider: &str) -> Result<()> {
    let url = loaded
        .config
        .providers
        .get(provider)
        .and_then(|provider| provider.base_url.as_deref());
    let Some(access) = loaded.providers.get(provider) else {
        return Ok(());
    };
    if !url.is_some_and(|url| url.starts_with("https://api.openai.com")) {
        return Ok(());
    }
    match access.secrets.get("api-key") {
        Some(secret) if secret.value().is_none() => Err(Error::new(
            Code::Config,
            format!("the provider `{provider}` has no key: {secret} is not set"),
        )
        .hint("set it, name a server without a key with `--base-url`, or try `--provider parrot`")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(choice: &Choice) -> Result<Option<ModelRef>> {
        model(&mut config::builtin(), choice)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.into())
    }

    #[test]
    fn flags_name_a_model() {
        let named = |provider: &str, model: &str| {
            Some(ModelRef {
                provider: provider.into(),
                model: model.into(),
            })
        };
        let check =
            |choice: Choice, expected| assert_eq!(chosen(&choice).expect("a choice"), expected);
        check(Choice::default(), None);
        check(
            Choice {
                model: some("openai/a/b"),
                ..Choice::default()
            },
            named("openai", "a/b"),
        );
        check(
            Choice {
                model: some("a/b"),
                ..Choice::default()
            },
            named("parrot", "a/b"),
        );
        check(
            Choice {
                provider: some("openai"),
                model: some("a/b"),
                ..Choice::default()
            },
            named("openai", "a/b"),
        );
        check(
            Choice {
                provider: some("parrot"),
                ..Choice::default()
            },
            named("parrot", "parrot"),
        );
        let local = Choice {
            base_url: some("http://localhost:1/v1"),
            model: some("m"),
            ..Choice::default()
        };
        check(local, named("openai", "m"));
    }

    #[test]
    fn cli_5_unknown_names_are_told_with_the_nearest() {
        let error = chosen(&Choice {
            provider: some("parot"),
            ..Choice::default()
        })
        .expect_err("unknown");
        assert_eq!(
            (error.code, error.hint.as_deref()),
            (Code::Config, Some("did you mean `parrot`?"))
        );
    }
}
