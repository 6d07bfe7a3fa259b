//! Addresses of servers, and what is derived from them.

use hyper::Uri;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Whom a connection goes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether it speaks TLS.
    pub secure: bool,
    /// Name or address, an IPv6 address without its brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// An `http` or `https` URL without query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    origin: Origin,
    /// What the `Host` header says.
    authority: String,
    /// Begins with a slash and does not end with one; or empty.
    path: String,
}

/// Why a text is no [`Url`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form http[s]://host[:port][/path]")]
pub struct NotAUrl(String);

impl FromStr for Url {
    type Err = NotAUrl;

    fn from_str(text: &str) -> Result<Url, NotAUrl> {
        let wrong = || NotAUrl(text.to_owned());
        let uri: Uri = text.trim().parse().map_err(|_| wrong())?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        let host = authority.host();
        let bad = host.is_empty() || authority.as_str().contains('@') || uri.query().is_some();
        // An empty port ("http://host:") parses; so does one that is no number.
        if bad || (authority.as_str().len() > host.len() && authority.port_u16().is_none()) {
            return Err(wrong());
        }
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Url {
            origin: Origin {
                secure,
                host,
                port: authority
                    .port_u16()
                    .unwrap_or(if secure { 443 } else { 80 }),
            },
            authority: authority.to_string(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Url {
    /// Whom to connect to.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Host and port as the `Host` header has them.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// What the request line says.
    pub fn path(&self) -> &str {
        if self.path.is_empty() {
            "/"
        } else {
            &self.path
        }
    }

    /// The base of the API: a server named without a path has it under `/v1`.
    pub fn api_base(&self) -> Url {
        match self.path.as_str() {
            "" => self.join("/v1"),
            _ => self.clone(),
        }
    }

    /// The server itself: without a trailing slash and `/v1`.
    pub fn server_root(&self) -> Url {
        let path = self.path.strip_suffix("/v1").unwrap_or(&self.path);
        Url {
            path: path.trim_end_matches('/').to_owned(),
            ..self.clone()
        }
    }

    /// This URL with `path`, which begins with a slash, behind it.
    pub fn join(&self, path: &str) -> Url {
        Url {
            path: format!("{}{path}", self.path),
            ..self.clone()
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.origin.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

impl Serialize for Url {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn bases_are_derived() {
        for (given, api, root) in [
            ("http://h", "http://h/v1", "http://h"),
            ("http://h:1/", "http://h:1/v1", "http://h:1"),
            ("http://h:1/v1", "http://h:1/v1", "http://h:1"),
            ("https://h/v1/", "https://h/v1", "https://h"),
            ("https://h/a/v1", "https://h/a/v1", "https://h/a"),
            ("https://h/a/v4", "https://h/a/v4", "https://h/a/v4"),
        ] {
            assert_eq!(url(given).api_base().to_string(), api);
            assert_eq!(url(given).server_root().to_string(), root);
        }
    }

    #[test]
    fn ports_follow_the_scheme() {
        assert_eq!(url("http://h").origin().port, 80);
        assert_eq!(url("https://h").origin().port, 443);
        let v6 = url("http://[::1]:7/v1");
        assert_eq!((v6.origin().host.as_str(), v6.origin().port), ("::1", 7));
        assert_eq!(v6.authority(), "[::1]:7");
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "",
            "h:1",
            "ftp://h",
            "http://",
            "http://a@h",
            "http://h:x",
            "http://h?a=b",
            "/v1",
        ] {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
    }
}
