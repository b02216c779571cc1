//! What an HTTP request may be, before anyone looks at its path.

use super::Refused;

/// The head of a request, as received.
#[derive(Debug, Clone, Copy)]
pub struct Http<'a> {
    /// The method.
    pub method: &'a str,
    /// All headers in order, names in any case.
    pub headers: &'a [(&'a str, &'a str)],
    /// Every `host:port` under which this listener is known: literal addresses
    /// and `.local` names.
    pub hosts: &'a [&'a str],
}

/// Header that the page's own script sets on requests that change something; a
/// form or a foreign page cannot.
const OWN_HEADER: &str = "x-hearth";

/// Headers with which proxies speak for someone else; `x-forwarded-` and the
/// like are prefixes.
const FORWARDING: &[&str] = &["forwarded", "x-real-ip", "via", "true-client-ip", "x-client-ip"];
const FORWARDING_PREFIXES: &[&str] = &[
    "x-forwarded",
    "x-original-",
    "x-cluster-client-ip",
    "x-envoy-external",
    "cf-",
    "fastly-client",
    "fly-client",
    "tailscale-user",
    "ngrok-",
];

impl Http<'_> {
    /// True when some program in front of us says that it speaks for another.
    /// The values are not read: they could say anything.
    pub(super) fn forwarded(&self) -> bool {
        self.headers.iter().any(|(name, _)| {
            let name = name.to_ascii_lowercase().replace('_', "-");
            FORWARDING.contains(&name.as_str())
                || FORWARDING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        })
    }

    /// The rules against rebinding, cross-site requests and socket hijack.
    pub(super) fn check(&self, logged_in: bool) -> Result<(), Refused> {
        let host = match self.single("host") {
            Ok(Some(host)) if self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) => host,
            _ => return Err(Refused::Host),
        };
        let changes = match self.method {
            "GET" | "HEAD" => false,
            "POST" | "PUT" | "PATCH" | "DELETE" => true,
            _ => return Err(Refused::Method),
        };
        let own_origin = match self.single("origin")? {
            Some(origin) => {
                let known =
                    |scheme| origin.strip_prefix(scheme).is_some_and(|o| o.eq_ignore_ascii_case(host));
                if !known("http://") && !known("https://") {
                    return Err(Refused::CrossSite);
                }
                true
            }
            None => false,
        };
        let same_origin = match self.single("sec-fetch-site")? {
            Some("same-origin") => true,
            None | Some("none") => false,
            Some(_) => return Err(Refused::CrossSite),
        };
        let upgrade = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
        if upgrade && !(own_origin && logged_in) {
            return Err(Refused::CrossSite);
        }
        let json = self
            .single("content-type")?
            .is_some_and(|t| t.split(';').next().map(str::trim) == Some("application/json"));
        let marked = self.single(OWN_HEADER)?.is_some();
        if changes && !(own_origin && same_origin && json && marked) {
            return Err(Refused::CrossSite);
        }
        Ok(())
    }

    /// The only value of a header; two of them are refused.
    fn single(&self, name: &str) -> Result<Option<&str>, Refused> {
        let mut values = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some((_, value)), None) => Ok(Some(value.trim())),
            _ => Err(Refused::CrossSite),
        }
    }
}
