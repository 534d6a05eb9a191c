//! Where plugins come from: the registries that are configured, with their credentials, and the
//! sources of configured names. What goes wrong with a registry is told together with what to do
//! about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mainstay_core::chain;
use mainstay_registry::{Access, Credentials, Error, ParseError, Pulled, Reference, SCHEME};
use mainstay_server::{Options, PluginError, RegistryFault};
use serde::Deserialize;

use crate::config::Secret;

/// What a plugin is loaded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    File(PathBuf),
    Registry(Reference),
}

impl Source {
    /// A path is meant from `folder`.
    pub(crate) fn parse(text: &str, folder: &Path) -> Result<Self, ParseError> {
        if text.starts_with(SCHEME) {
            return Ok(Self::Registry(text.parse()?));
        }
        Ok(Self::File(folder.join(text)))
    }
}

/// The registries that are configured, by host and port. Any other is asked without credentials.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registries(BTreeMap<String, Registry>);

/// How one registry is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Registry {
    login: Login,
    /// Without TLS. If it is not said, only on this machine.
    insecure: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Login {
    #[default]
    None,
    Basic {
        username: String,
        password: Secret,
    },
    Bearer(Secret),
}

/// `[registries."host:port"]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct RegistryTable {
    username: Option<String>,
    password: Option<Secret>,
    token: Option<Secret>,
    insecure: Option<bool>,
}

impl RegistryTable {
    pub(crate) fn secrets(&mut self) -> impl Iterator<Item = &mut Secret> {
        self.password.iter_mut().chain(&mut self.token)
    }
}

/// Most bytes of a component, wherever it comes from.
pub(crate) fn limit() -> u64 {
    Options::default().plugin_limit as u64
}

impl Registries {
    /// Adds what is configured.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn add(&mut self, host: &str, table: RegistryTable) -> Result<(), String> {
        let reference: Result<Reference, _> = format!("{SCHEME}{host}/any:any").parse();
        let reference = reference
            .map_err(|_| format!("`{host}` is no registry: write its host and port alone"))?;
        let login = match (table.username, table.password, table.token) {
            (None, None, None) => Login::None,
            (Some(username), Some(password), None) => Login::Basic { username, password },
            (None, None, Some(token)) => Login::Bearer(token),
            _ => {
                return Err(format!(
                    "the registry `{host}` takes `username` and `password`, or `token` alone"
                ));
            }
        };
        let registry = Registry {
            login,
            insecure: table.insecure,
        };
        self.0.insert(reference.registry().to_owned(), registry);
        Ok(())
    }

    /// The values of all secrets that are set.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = String> {
        self.0
            .values()
            .filter_map(|registry| match &registry.login {
                Login::None => None,
                Login::Basic { password, .. } => password.value(),
                Login::Bearer(token) => token.value(),
            })
    }

    /// Fetches a component. `learn` is told of a secret before it is used.
    ///
    /// # Errors
    /// [`PluginError::Registry`].
    ///
    /// # Cancel safety
    /// Safe: nothing is kept.
    pub(crate) async fn pull(
        &self,
        reference: &Reference,
        learn: impl Fn(&str),
    ) -> Result<Pulled, PluginError> {
        let access = self.access(reference)?;
        match &access.credentials {
            Credentials::None => {}
            Credentials::Basic { password, .. } => learn(password),
            Credentials::Bearer(token) => learn(token),
        }
        mainstay_registry::pull(reference, &access, limit())
            .await
            .map_err(|error| told(&error, reference, &access))
    }

    fn access(&self, reference: &Reference) -> Result<Access, PluginError> {
        let host = reference.registry();
        let registry = self.0.get(host).cloned().unwrap_or_default();
        let value = |what, secret: &Secret| {
            secret.value().ok_or_else(|| PluginError::Registry {
                fault: RegistryFault::Denied,
                text: format!("the {what} of the registry {host} is configured, but not set"),
                advice: format!("set {secret}, or change the table `[registries.\"{host}\"]`"),
            })
        };
        Ok(Access {
            credentials: match registry.login {
                Login::None => Credentials::None,
                Login::Basic { username, password } => Credentials::Basic {
                    username,
                    password: value("password", &password)?,
                },
                Login::Bearer(token) => Credentials::Bearer(value("token", &token)?),
            },
            plain: registry.insecure.unwrap_or_else(|| reference.is_loopback()),
        })
    }
}

/// An error with what to do about it.
fn told(error: &Error, reference: &Reference, access: &Access) -> PluginError {
    let host = reference.registry();
    let table = format!("`[registries.\"{host}\"]`");
    let (fault, advice) = match error {
        Error::Unreachable { .. } if access.plain => (
            RegistryFault::Unreachable,
            "see whether it runs there, and whether it speaks plain HTTP".to_owned(),
        ),
        Error::Unreachable { .. } => (
            RegistryFault::Unreachable,
            format!(
                "see whether it runs there; if it has no TLS, say so in {table}: `insecure = true`"
            ),
        ),
        Error::Answer { .. } => (RegistryFault::Unreachable, "try again later".to_owned()),
        Error::Denied(_) if matches!(access.credentials, Credentials::None) => (
            RegistryFault::Denied,
            format!(
                "see whether the name is right; if it is, give credentials in mainstay.toml: a table \
                 {table} with `username` and `password = {{ env = \"NAME\" }}`, or `token = {{ env = \"NAME\" }}`"
            ),
        ),
        Error::Denied(_) => (
            RegistryFault::Denied,
            format!(
                "see whether the credentials in {table} of mainstay.toml are right and may read it"
            ),
        ),
        Error::NotFound(_) => (
            RegistryFault::NotFound,
            "see whether repository and tag are right, and whether it was pushed".to_owned(),
        ),
        Error::Mismatch { .. } => (
            RegistryFault::Refused,
            "do not trust what this registry gives; get the component from somewhere else"
                .to_owned(),
        ),
        Error::NoPlugin { .. } => (
            RegistryFault::Refused,
            "push the component as one layer of the type `application/wasm`".to_owned(),
        ),
        Error::TooLarge { .. } => (RegistryFault::Refused, "build it smaller".to_owned()),
        Error::Broken { .. } => (
            RegistryFault::Refused,
            "see whether this is a registry of OCI artifacts".to_owned(),
        ),
    };
    PluginError::Registry {
        fault,
        text: chain(error),
        advice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(text: &str) -> Result<Registries, String> {
        let mut registries = Registries::default();
        registries.add("Host:5000", toml::from_str(text).expect("a table"))?;
        Ok(registries)
    }

    fn access(text: &str, reference: &str) -> Access {
        let reference = reference.parse().expect("a reference");
        let registries = configured(text).expect("right");
        registries.access(&reference).expect("access")
    }

    #[test]
    fn plugin_2_credentials_go_to_their_registry_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        std::fs::write(&file, "swordfish\n").expect("a file");
        let text = format!("username = \"u\"\npassword = {{ file = {file:?} }}");
        let Credentials::Basic { username, password } =
            access(&text, "oci://host:5000/a:1").credentials
        else {
            panic!("basic credentials")
        };
        assert_eq!((username.as_str(), password.as_str()), ("u", "swordfish"));
        for other in ["oci://host/a:1", "oci://host:5001/a:1"] {
            let credentials = access(&text, other).credentials;
            assert!(matches!(credentials, Credentials::None), "{other}");
        }
    }

    #[test]
    fn plugin_2_plain_http_is_for_this_machine_unless_said_otherwise() {
        assert!(!access("", "oci://host:5000/a:1").plain);
        assert!(access("insecure = true", "oci://host:5000/a:1").plain);
        assert!(!access("insecure = true", "oci://other/a:1").plain);
        assert!(access("", "oci://127.0.0.1:5000/a:1").plain);
        let mut registries = Registries::default();
        let secure = toml::from_str("insecure = false").expect("a table");
        registries.add("localhost", secure).expect("right");
        let reference = "oci://localhost/a:1".parse().expect("a reference");
        assert!(!registries.access(&reference).expect("access").plain);
    }

    #[test]
    fn plugin_2_halves_of_credentials_are_refused() {
        for text in [
            "username = \"u\"",
            "password = { env = \"P\" }",
            "username = \"u\"\ntoken = { env = \"T\" }",
        ] {
            let error = configured(text).expect_err(text);
            assert!(error.contains("or `token` alone"), "{error}");
        }
        let error = Registries::default()
            .add("https://host", RegistryTable::default())
            .expect_err("no host");
        assert!(error.contains("host and port alone"), "{error}");
    }

    #[test]
    fn plugin_2_a_secret_that_is_not_set_is_named() {
        let registries = configured("token = { file = \"/nowhere/token\" }").expect("right");
        let reference = "oci://host:5000/a:1".parse().expect("a reference");
        let error = registries.access(&reference).expect_err("no value");
        let PluginError::Registry { text, advice, .. } = error else {
            panic!("{error}")
        };
        assert!(text.contains("host:5000"), "{text}");
        assert!(advice.contains("/nowhere/token"), "{advice}");
    }
}
