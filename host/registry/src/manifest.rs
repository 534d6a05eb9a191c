//! What a manifest says of a plugin: which layer is the component, or, in an index, which manifest
//! to look at instead. Everything in here is a pure function of the manifest's bytes.

use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, ImageIndexEntry,
    OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciManifest,
    WASM_LAYER_MEDIA_TYPE,
};

use crate::reference::is_digest;

/// Media types of the layer that is a component: the one in use, and the one before it.
const LAYERS: [&str; 2] = ["application/wasm", WASM_LAYER_MEDIA_TYPE];
/// What WebAssembly artifacts are called in an index.
const ARTIFACTS: [&str; 3] = [
    "application/vnd.wasm.config.v0+json",
    "application/vnd.wasm.config.v1+json",
    "application/wasm",
];

/// Manifests that are understood.
pub(crate) const ACCEPTED: [&str; 4] = [
    OCI_IMAGE_MEDIA_TYPE,
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
];

/// Where the component is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// In the layer of this digest, which is said to have this many bytes.
    Layer { digest: String, size: u64 },
    /// In what the manifest of this digest says.
    Manifest(String),
}

/// Reads a manifest.
///
/// # Errors
/// Why there is no plugin in it, as the end of a sentence about the artifact.
pub(crate) fn read(bytes: &[u8]) -> Result<Content, String> {
    let manifest: OciManifest = serde_json::from_slice(bytes)
        .map_err(|_| "has a manifest that is neither an image's nor an index".to_owned())?;
    match manifest {
        OciManifest::Image(image) => layer(&image.layers),
        OciManifest::ImageIndex(index) => entry(&index.manifests),
    }
}

fn layer(layers: &[OciDescriptor]) -> Result<Content, String> {
    let mut found = layers
        .iter()
        .filter(|layer| LAYERS.contains(&layer.media_type.as_str()));
    let Some(layer) = found.next() else {
        let types = layers.iter().map(|layer| layer.media_type.as_str());
        return Err(format!(
            "has no layer of the type `{}`, only {}",
            LAYERS[0],
            list(types)
        ));
    };
    if found.next().is_some() {
        return Err("has several layers of WebAssembly, and a plugin is one component".into());
    }
    Ok(Content::Layer {
        digest: checked(&layer.digest)?,
        size: u64::try_from(layer.size).unwrap_or_default(),
    })
}

fn entry(entries: &[ImageIndexEntry]) -> Result<Content, String> {
    let is_wasm = |entry: &&ImageIndexEntry| {
        let platform = entry.platform.as_ref();
        platform.is_some_and(|platform| platform.architecture.to_string() == "wasm")
            || entry
                .artifact_type
                .as_deref()
                .is_some_and(|kind| ARTIFACTS.contains(&kind))
    };
    let found: Vec<&ImageIndexEntry> = entries.iter().filter(is_wasm).collect();
    match found.as_slice() {
        [entry] => Ok(Content::Manifest(checked(&entry.digest)?)),
        [] => {
            let platforms = entries.iter().map(|entry| match &entry.platform {
                Some(platform) => format!("{}/{}", platform.os, platform.architecture),
                None => entry.media_type.clone(),
            });
            Err(format!(
                "is an index without an artifact of WebAssembly, only {}",
                list(platforms)
            ))
        }
        several => {
            let digests = several.iter().map(|entry| entry.digest.as_str());
            Err(format!(
                "is an index with several artifacts of WebAssembly, so name one by its digest: {}",
                list(digests)
            ))
        }
    }
}

/// A digest that goes into a URL.
fn checked(digest: &str) -> Result<String, String> {
    if is_digest(digest) {
        return Ok(digest.to_owned());
    }
    Err(format!(
        "names what it consists of by `{}`, which is no SHA-256",
        tame(digest)
    ))
}

/// A few of the registry's words.
fn list(words: impl Iterator<Item = impl AsRef<str>>) -> String {
    let words: Vec<String> = words
        .take(8)
        .map(|word| format!("`{}`", tame(word.as_ref())))
        .collect();
    if words.is_empty() {
        return "nothing".into();
    }
    words.join(", ")
}

/// A registry's words, short and without control codes.
pub(crate) fn tame(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    fn image(layers: &[(&str, &str)]) -> String {
        let layers: Vec<String> = layers
            .iter()
            .map(|(kind, digest)| {
                format!(r#"{{"mediaType":"{kind}","digest":"{digest}","size":3}}"#)
            })
            .collect();
        format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"x","digest":"{}","size":2}},"layers":[{}]}}"#,
            digest('0'),
            layers.join(",")
        )
    }

    fn index(entries: &[&str]) -> String {
        let entries: Vec<String> = entries
            .iter()
            .enumerate()
            .map(|(at, rest)| {
                let digest = digest(char::from_digit(at as u32, 10).expect("a digit"));
                format!(r#"{{"mediaType":"m","digest":"{digest}","size":1{rest}}}"#)
            })
            .collect();
        format!(
            r#"{{"schemaVersion":2,"manifests":[{}]}}"#,
            entries.join(",")
        )
    }

    #[track_caller]
    fn refused(manifest: &str, cause: &str) {
        let error = read(manifest.as_bytes()).expect_err(manifest);
        assert!(error.contains(cause), "{error}");
    }

    #[test]
    fn plugin_2_the_layer_of_webassembly_is_found_among_others() {
        for kind in LAYERS {
            let one = digest('1');
            let manifest = image(&[("text/plain", &digest('2')), (kind, &one)]);
            let layer = Content::Layer {
                digest: one,
                size: 3,
            };
            assert_eq!(read(manifest.as_bytes()), Ok(layer));
        }
    }

    #[test]
    fn plugin_2_exactly_one_layer_is_webassembly() {
        let (one, two) = (digest('1'), digest('2'));
        refused(&image(&[("text/plain", &one)]), "only `text/plain`");
        refused(&image(&[]), "only nothing");
        let several = image(&[(LAYERS[0], &one), (LAYERS[1], &two)]);
        refused(&several, "several layers");
        refused(&image(&[(LAYERS[0], "sha256:../../x")]), "no SHA-256");
        refused("{}", "neither");
        refused("[", "neither");
    }

    #[test]
    fn plugin_2_an_index_leads_to_its_one_artifact_of_webassembly() {
        let linux = r#","platform":{"architecture":"amd64","os":"linux"}"#;
        let wasm = r#","platform":{"architecture":"wasm","os":"wasip2"}"#;
        let named = r#","artifactType":"application/vnd.wasm.config.v0+json""#;
        for right in [wasm, named] {
            let found = read(index(&[linux, right]).as_bytes());
            assert_eq!(found, Ok(Content::Manifest(digest('1'))));
        }
        refused(&index(&[linux, ""]), "only `linux/amd64`, `m`");
        refused(&index(&[wasm, named]), &digest('1'));
        refused(&index(&[]), "only nothing");
    }

    #[test]
    fn words_of_a_registry_are_tamed() {
        assert_eq!(tame("a\u{1b}[31m\nb"), "a[31mb");
        assert_eq!(tame(&"x".repeat(500)).len(), 120);
    }
}
