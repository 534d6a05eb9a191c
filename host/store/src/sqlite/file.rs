//! What is checked before SQLite touches a file.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::OpenError;

/// `application_id` of our files: "Mnst".
pub(super) const APPLICATION_ID: u32 = 0x4d6e_7374;

/// The oldest library that is used: earlier ones can damage a WAL that is checkpointed while written.
pub(super) const OLDEST_SQLITE: &str = "3.51.3";

/// The path under which a file is known whichever way it was named. The file may be missing, its
/// directory may not.
pub(crate) fn canonical(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            Ok(parent.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        Err(error) => Err(error),
    }
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing, or there is no file.
    Nothing,
    Ours,
    Foreign,
}

/// Looks at the first bytes of a file.
pub(super) fn content(path: &Path) -> io::Result<Content> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::Nothing),
        Err(error) => return Err(error),
    };
    let mut header = Vec::with_capacity(100);
    file.by_ref().take(100).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(Content::Nothing);
    }
    let is_ours = header.len() == 100
        && header.starts_with(b"SQLite format 3\0")
        && header[68..72] == APPLICATION_ID.to_be_bytes();
    Ok(if is_ours {
        Content::Ours
    } else {
        Content::Foreign
    })
}

/// Refuses a library that is too old.
pub(super) fn check_version(found: &str) -> Result<(), OpenError> {
    let parse = |text: &str| -> Vec<u32> {
        text.split('.')
            .map(|part| part.parse().unwrap_or(0))
            .collect()
    };
    if parse(found) < parse(OLDEST_SQLITE) {
        return Err(OpenError::Library {
            found: found.into(),
            needed: OLDEST_SQLITE,
        });
    }
    Ok(())
}

/// The name of the network file system that a directory lies on, if it does.
pub(super) fn network_file_system(directory: &Path) -> io::Result<Option<String>> {
    #[cfg(target_os = "linux")]
    {
        let magic = rustix::fs::statfs(directory)?.f_type;
        if let Some(name) = network_name(magic as u64 & 0xffff_ffff) {
            return Ok(Some(name.into()));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Ok(mounted_kind(&mounts, directory).filter(|kind| is_network_kind(kind)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = directory;
        Ok(None)
    }
}

/// Network file systems by the magic number of `statfs`.
#[cfg(any(target_os = "linux", test))]
fn network_name(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x5346_414f => "AFS",
        0x00c3_6400 => "Ceph",
        0x7375_7245 => "Coda",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        _ => return None,
    })
}

/// FUSE has one magic number for all; the mount table tells them apart.
#[cfg(any(target_os = "linux", test))]
fn is_network_kind(kind: &str) -> bool {
    const FUSE: &[&str] = &[
        "sshfs",
        "s3fs",
        "glusterfs",
        "rclone",
        "gcsfuse",
        "goofys",
        "davfs",
        "ceph",
        "juicefs",
    ];
    matches!(
        kind,
        "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" | "afs" | "ceph" | "glusterfs" | "lustre"
    ) || kind
        .strip_prefix("fuse.")
        .is_some_and(|name| FUSE.contains(&name))
}

/// The file system kind of the mount that holds `path`, from the text of `/proc/self/mountinfo`.
#[cfg(any(target_os = "linux", test))]
fn mounted_kind(mounts: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let (Some(point), Some(kind)) = (
            line.split(' ').nth(4),
            line.split(" - ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next()),
        ) else {
            continue;
        };
        let point = point.replace("\\040", " ");
        let longer = best.is_none_or(|(length, _)| point.len() >= length);
        if path.starts_with(&point) && longer {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_4_an_old_library_is_refused_with_both_versions() {
        for good in ["3.51.3", "3.51.10", "3.52.0", "4.0.0"] {
            check_version(good).unwrap();
        }
        for bad in ["3.51.2", "3.9.9", "3.46.1", "2.99.99", "nonsense"] {
            let message = check_version(bad).unwrap_err().to_string();
            assert!(
                message.contains(bad) && message.contains(OLDEST_SQLITE),
                "{message}"
            );
        }
    }

    #[test]
    fn store_4_network_file_systems_are_known() {
        for magic in [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42] {
            assert!(network_name(magic).is_some());
        }
        assert_eq!(network_name(0xef53), None);
        let mounts = "1 0 0:1 / / rw - ext4 /dev/a rw\n\
                      2 1 0:2 / /mnt/my\\040share rw,nosuid shared:1 - fuse.sshfs me@there: rw\n\
                      3 1 0:3 / /mnt rw - tmpfs none rw\n";
        let kind = |path: &str| mounted_kind(mounts, Path::new(path)).unwrap();
        assert_eq!(kind("/home/x"), "ext4");
        assert_eq!(kind("/mnt/other"), "tmpfs");
        assert_eq!(kind("/mnt/my share/db"), "fuse.sshfs");
        assert!(is_network_kind("fuse.sshfs") && is_network_kind("nfs4"));
        assert!(!is_network_kind("ext4") && !is_network_kind("fuse.ntfs3g"));
    }

    #[test]
    fn content_is_told_by_the_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert_eq!(content(&path).unwrap(), Content::Nothing);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(content(&path).unwrap(), Content::Nothing);
        std::fs::write(&path, b"hello").unwrap();
        assert_eq!(content(&path).unwrap(), Content::Foreign);
    }
}
