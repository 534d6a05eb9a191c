//! Who may ask. A page of another site can make a browser on this machine send requests here; the
//! `Host` and `Origin` headers give it away, before anything has an effect.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use mainstay_core::id::digest;

use crate::error::{Kind, Problem};
use crate::state::{Options, ServerState};

/// The middleware.
pub(crate) async fn check(
    State(state): State<ServerState>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    judge(state.options(), request.uri(), request.headers())?;
    Ok(next.run(request).await)
}

fn judge(options: &Options, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    // Whoever stands in between may have gone by the other one.
    for name in [header::HOST, header::ORIGIN] {
        if headers.get_all(&name).iter().nth(1).is_some() {
            let detail = format!("The request has more than one `{name}` header. Send one.");
            return Err(Problem::new(Kind::BadRequest, detail));
        }
    }
    let host =
        text(headers, header::HOST).or_else(|| uri.authority().map(|authority| authority.as_str()));
    let host = host.unwrap_or_default();
    if !is_own(options, name_of(host)) {
        return Err(Problem::new(
            Kind::ForeignHost,
            format!(
                "`{host}` is not a name of this server. Ask for it by its address, or add the name to its hosts."
            ),
        ));
    }
    if headers.contains_key(header::ORIGIN) {
        let origin = text(headers, header::ORIGIN).unwrap_or("null");
        // A page of this server has the server's own host and port.
        let own = origin
            .split_once("://")
            .is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
        if !own {
            return Err(Problem::new(
                Kind::ForeignOrigin,
                format!(
                    "The request comes from a page of `{origin}`. Ask from outside a browser, or from this server's own page."
                ),
            ));
        }
    }
    if let Some(token) = &options.token {
        let given = text(headers, header::AUTHORIZATION).and_then(|value| {
            let (scheme, given) = value.split_once(' ')?;
            scheme
                .eq_ignore_ascii_case("bearer")
                .then_some(given.trim())
        });
        // Digests are compared, so that the time taken tells nothing of the token.
        if given.map(|given| digest(given.as_bytes())) != Some(digest(token.as_bytes())) {
            let detail = "The bearer token is missing or wrong. Send `Authorization: Bearer TOKEN` with the token that \
                          the server was started with.";
            return Err(Problem::new(Kind::Unauthorized, detail));
        }
    }
    Ok(())
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The host without its port and brackets.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    match host.rsplit_once(':') {
        Some((name, port))
            if !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            name
        }
        _ => host,
    }
}

fn is_own(options: &Options, name: &str) -> bool {
    if name.eq_ignore_ascii_case("localhost")
        || options
            .hosts
            .iter()
            .any(|own| own.eq_ignore_ascii_case(name))
    {
        return true;
    }
    // A name can be made to lead here by its owner; an address cannot.
    name.parse::<IpAddr>()
        .is_ok_and(|address| address.is_loopback() || options.any_address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(options: &Options, headers: &[(&'static str, &str)], expected: Option<Kind>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a header"));
        }
        let found = judge(options, &Uri::from_static("/v1/sessions"), &map)
            .err()
            .map(|problem| problem.kind);
        assert_eq!(found, expected, "{headers:?}");
    }

    #[test]
    fn api_8_foreign_hosts_are_refused() {
        let options = Options {
            hosts: vec!["box.lan".into()],
            ..Options::default()
        };
        for own in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:7070",
            "127.9.9.9",
            "[::1]:7070",
            "box.lan:1",
        ] {
            check(&options, &[("host", own)], None);
        }
        for foreign in [
            "evil.test",
            "localhost.evil.test",
            "10.0.0.1:7070",
            "127.0.0.1.evil.test",
            "",
        ] {
            check(&options, &[("host", foreign)], Some(Kind::ForeignHost));
        }
        check(&options, &[], Some(Kind::ForeignHost));
        let anywhere = Options {
            any_address: true,
            ..Options::default()
        };
        check(&anywhere, &[("host", "10.0.0.1:7070")], None);
        check(&anywhere, &[("host", "evil.test")], Some(Kind::ForeignHost));
    }

    #[test]
    fn api_8_foreign_origins_are_refused() {
        let options = Options::default();
        check(
            &options,
            &[
                ("host", "localhost:7070"),
                ("origin", "http://localhost:7070"),
            ],
            None,
        );
        for foreign in [
            "http://evil.test",
            "null",
            "http://localhost:7071",
            "localhost:7070",
        ] {
            check(
                &options,
                &[("host", "localhost:7070"), ("origin", foreign)],
                Some(Kind::ForeignOrigin),
            );
        }
    }

    #[test]
    fn api_8_a_request_names_one_host_and_one_origin() {
        let own = ("host", "localhost:7070");
        for second in [own, ("host", "evil.test")] {
            let options = Options::default();
            check(&options, &[own, second], Some(Kind::BadRequest));
            check(&options, &[second, own], Some(Kind::BadRequest));
        }
        let origin = ("origin", "http://localhost:7070");
        let headers = [own, origin, ("origin", "http://evil.test")];
        check(&Options::default(), &headers, Some(Kind::BadRequest));
    }

    #[test]
    fn api_7_a_missing_or_wrong_token_is_401() {
        let options = Options {
            token: Some("open sesame".into()),
            ..Options::default()
        };
        let host = ("host", "localhost");
        check(&options, &[host], Some(Kind::Unauthorized));
        check(
            &options,
            &[host, ("authorization", "Bearer shut")],
            Some(Kind::Unauthorized),
        );
        check(
            &options,
            &[host, ("authorization", "Basic open sesame")],
            Some(Kind::Unauthorized),
        );
        check(
            &options,
            &[host, ("authorization", "bearer open sesame")],
            None,
        );
    }
}
