//! Names of artifacts: `oci://HOST[:PORT]/REPOSITORY:TAG`, `…@sha256:DIGEST`, or both. The scheme
//! is written out, so that no file is ever taken for a registry, and the tag too: none is guessed.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// What every reference begins with.
pub const SCHEME: &str = "oci://";

/// An artifact in a registry. Where there is a digest, it alone decides what is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// Why a text is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no reference to an artifact: {cause}")]
pub struct ParseError {
    text: String,
    cause: &'static str,
}

impl Reference {
    /// Host, and port if it is not the scheme's own.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// The same, held to what it was resolved to.
    #[must_use]
    pub fn pinned(&self, digest: &str) -> Self {
        Self {
            digest: Some(digest.to_owned()),
            ..self.clone()
        }
    }

    /// The registry is on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let (host, _) = split_port(&self.registry);
        host == "localhost"
            || host
                .parse::<Ipv4Addr>()
                .is_ok_and(|address| address.is_loopback())
            || literal(host).is_some_and(|address| address.is_loopback())
    }

    /// Whether `pinned` came of loading this reference: from the same tag, or of the same digest.
    #[must_use]
    pub fn led_to(&self, pinned: &Self) -> bool {
        self.registry == pinned.registry
            && self.repository == pinned.repository
            && match &self.digest {
                Some(digest) => pinned.digest.as_ref() == Some(digest),
                None => self.tag == pinned.tag,
            }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text).map_err(|cause| ParseError {
            text: text.to_owned(),
            cause,
        })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let rest = text
        .strip_prefix(SCHEME)
        .ok_or("it begins with `oci://`, as in `oci://host/repository:tag`")?;
    let (registry, rest) = rest
        .split_once('/')
        .ok_or("a repository follows the host, as in `oci://host/repository:tag`")?;
    let registry = registry.to_ascii_lowercase();
    if !is_registry(&registry) {
        return Err("the registry is a host name or address, with a port if need be");
    }
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (rest, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err("a digest is `sha256:` and 64 of 0-9 and a-f");
    }
    let (repository, tag) = match rest.split_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (rest, None),
    };
    if !is_repository(repository) {
        return Err("a repository is made of a-z and 0-9, with `/`, `.`, `_` and `-` between");
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("a tag is made of up to 128 of a-z, A-Z, 0-9, `_`, `.` and `-`");
    }
    if tag.is_none() && digest.is_none() {
        return Err("it needs a tag (`:1.0`) or a digest (`@sha256:…`)");
    }
    Ok(Reference {
        registry,
        repository: repository.to_owned(),
        tag: tag.map(str::to_owned),
        digest: digest.map(str::to_owned),
    })
}

/// Whether a text is a digest that is understood here.
pub(crate) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn is_registry(text: &str) -> bool {
    let (host, port) = split_port(text);
    let port = port.is_none_or(|port| {
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let name = host.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    });
    port && (name || literal(host).is_some())
}

/// An address in brackets.
fn literal(host: &str) -> Option<Ipv6Addr> {
    host.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

fn split_port(registry: &str) -> (&str, Option<&str>) {
    match registry.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (registry, None),
    }
}

fn is_repository(text: &str) -> bool {
    let plain = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    text.len() <= 255
        && text.split('/').all(|part| {
            let bytes = part.as_bytes();
            plain(bytes.first())
                && plain(bytes.last())
                && bytes
                    .iter()
                    .all(|byte| plain(Some(byte)) || b"._-".contains(byte))
                // Dots lead out of a folder.
                && !part.contains("..")
        })
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text
            .bytes()
            .enumerate()
            .all(|(at, byte)| word(byte) || (at > 0 && b".-".contains(&byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[track_caller]
    fn right(text: &str) -> Reference {
        text.parse().expect("a reference")
    }

    #[track_caller]
    fn wrong(text: &str, cause: &str) {
        let error = text.parse::<Reference>().expect_err(text).to_string();
        assert!(error.contains(text) && error.contains(cause), "{error}");
    }

    #[test]
    fn plugin_2_a_reference_is_read_part_by_part() {
        let reference = right("oci://Registry.example:5000/team/brief_x.y:1.0-rc.1");
        assert_eq!(reference.registry(), "registry.example:5000");
        assert_eq!(reference.repository(), "team/brief_x.y");
        assert_eq!(
            (reference.tag(), reference.digest()),
            (Some("1.0-rc.1"), None)
        );

        let reference = right(&format!("oci://[::1]:80/a@{DIGEST}"));
        assert_eq!(reference.registry(), "[::1]:80");
        assert_eq!((reference.tag(), reference.digest()), (None, Some(DIGEST)));

        let both = format!("oci://host/a:tag@{DIGEST}");
        let reference = right(&both);
        assert_eq!(
            (reference.tag(), reference.digest()),
            (Some("tag"), Some(DIGEST))
        );
        assert_eq!(reference.to_string(), both);
    }

    #[test]
    fn plugin_2_what_is_no_reference_is_told_why() {
        for text in [
            "",
            "host/a:1",
            "./a.wasm",
            "https://host/a:1",
            "OCI://host/a:1",
        ] {
            wrong(text, "begins with `oci://`");
        }
        wrong("oci://host", "a repository follows");
        for host in [
            "", "-a", "a..b", "a b", "u@h", "h:", "h:0", "h:+1", "h:65536", "[x]", "::1",
        ] {
            wrong(&format!("oci://{host}/a:1"), "the registry is");
        }
        for repository in [
            "", "A", "a//b", "/a", "a/", "a/..", "a..b", "-a", "a_", "a%2f", "a?x",
        ] {
            wrong(&format!("oci://h/{repository}:1"), "a repository is");
        }
        for tag in ["", "-a", ".a", "a:b", "a/b", "a b", "ä", &"x".repeat(129)] {
            wrong(&format!("oci://h/a:{tag}"), "a tag is");
        }
        for digest in [
            "",
            "sha256:",
            "md5:00",
            &DIGEST.to_uppercase(),
            &DIGEST[..70],
        ] {
            wrong(&format!("oci://h/a@{digest}"), "a digest is");
        }
        wrong("oci://h/a", "needs a tag");
    }

    #[test]
    fn plugin_2_only_this_machine_is_loopback() {
        for host in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]",
            "[::1]:5",
        ] {
            assert!(right(&format!("oci://{host}/a:1")).is_loopback(), "{host}");
        }
        for host in [
            "localhost.example",
            "127.0.0.1.example",
            "128.0.0.1",
            "[::2]",
            "10.0.0.1:80",
        ] {
            assert!(!right(&format!("oci://{host}/a:1")).is_loopback(), "{host}");
        }
    }

    #[test]
    fn plugin_2_what_was_loaded_is_known_by_its_tag_or_digest() {
        let tag = right("oci://h/a:1");
        let pinned = tag.pinned(DIGEST);
        assert!(tag.led_to(&pinned) && pinned.led_to(&pinned));
        let digest = right(&format!("oci://h/a@{DIGEST}"));
        assert!(digest.led_to(&pinned));
        for other in ["oci://h/a:2", "oci://h/b:1", "oci://g/a:1"] {
            assert!(!right(other).led_to(&pinned), "{other}");
        }
        let moved = format!("sha256:{}", "0".repeat(64));
        assert!(tag.led_to(&tag.pinned(&moved)));
        assert!(!digest.led_to(&tag.pinned(&moved)));
    }
}
