//! Which addresses are on the public internet, and names to addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::BoxError;

/// Turns names into addresses.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// The system's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((name, 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

/// Whether everyone on the internet means the same machine by it.
#[must_use]
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        // Carrier-grade NAT.
        || (a == 100 && (64..128).contains(&b))
        // IETF protocol assignments, benchmarking.
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19)))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    // IPv4 in other clothes is judged as IPv4: mapped, compatible, NAT64, 6to4.
    if let Some(v4) = address.to_ipv4_mapped() {
        return is_public_v4(v4);
    }
    if segments[..6] == [0, 0, 0, 0, 0, 0] || segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
        return is_public_v4(embedded(segments[6], segments[7]));
    }
    if segments[0] == 0x2002 {
        return is_public_v4(embedded(segments[1], segments[2]));
    }
    // Only 2000::/3 is given out for use on the internet.
    segments[0] & 0xe000 == 0x2000
        // Teredo and other protocol assignments, documentation.
        && !(segments[0] == 0x2001 && (segments[1] < 0x200 || segments[1] == 0xdb8))
        && !(segments[0] == 0x3fff && segments[1] < 0x1000)
}

/// What reqwest asks when it connects, so that the address that was judged is the one connected to.
pub(super) struct Guarded {
    pub(super) resolver: Arc<dyn Resolver>,
    pub(super) private: bool,
}

impl reqwest::dns::Resolve for Guarded {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let resolver = Arc::clone(&self.resolver);
        let private = self.private;
        Box::pin(async move {
            let found = resolver.lookup(name.as_str()).await?;
            let Some(&first) = found.first() else {
                return Err(BoxError::from(format!(
                    "`{}` has no address",
                    name.as_str()
                )));
            };
            let fit: Vec<_> = found
                .into_iter()
                .filter(|address| private || is_public(*address))
                .map(|address| std::net::SocketAddr::new(address, 0))
                .collect();
            if fit.is_empty() {
                return Err(BoxError::from(PrivateAddress {
                    host: name.as_str().to_owned(),
                    address: first,
                }));
            }
            Ok(Box::new(fit.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

/// A host has no public address, and no grant for private ones.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{host}` is at {address}, which is no public address; if that is meant, let the grant say \
     `private = true`"
)]
pub(super) struct PrivateAddress {
    pub(super) host: String,
    pub(super) address: IpAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_3_private_ranges_are_known_in_all_clothes() {
        for text in [
            "127.0.0.1",
            "10.0.0.5",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.5",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "2606:4700:4700::1111",
            "64:ff9b::808:808",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }
}
