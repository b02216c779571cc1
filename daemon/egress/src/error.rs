//! Why a request failed. No text here holds a query string, a path or a secret.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::time::Duration;

/// The part of a request that took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Finding the address of the name.
    Resolve,
    /// Opening the connection, TLS included.
    Connect,
    /// Waiting for the first byte of the answer.
    FirstByte,
    /// The whole exchange.
    Total,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolving the name",
            Self::Connect => "connecting",
            Self::FirstByte => "waiting for the first byte",
            Self::Total => "reading the whole answer",
        })
    }
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The address is not one that can be asked.
    #[error("not a usable web address: {0}")]
    BadUrl(String),
    /// A guard said no: private address, port, downgrade, user name in the address.
    #[error("refused: {0}")]
    Refused(String),
    /// The name has no address.
    #[error("the name {host} cannot be resolved: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's words.
        reason: String,
    },
    /// No connection.
    #[error("cannot connect to {peer}: {reason}")]
    Connect {
        /// Host and port.
        peer: String,
        /// The system's words.
        reason: String,
    },
    /// The certificate or the handshake was refused.
    #[error("no secure connection to {peer}: {reason}")]
    Tls {
        /// Host and port.
        peer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A phase took too long.
    #[error("gave up after {limit:?} while {phase}")]
    TimedOut {
        /// The phase.
        phase: Phase,
        /// Its limit.
        limit: Duration,
    },
    /// The connection ended early.
    #[error("the connection broke off: {0}")]
    Broken(String),
    /// More redirects than allowed.
    #[error("more than {0} redirects")]
    TooManyRedirects(usize),
    /// The peer sent what HTTP does not allow, or what we do not read.
    #[error("unexpected answer: {0}")]
    Protocol(String),
}

/// What went wrong in a library error, most telling cause first.
pub(crate) fn from_reqwest(peer: &str, connect: Duration, error: reqwest::Error) -> EgressError {
    let error = error.without_url();
    let reason = root_cause(&error);
    if let Some(tls) = find::<rustls::Error>(&error) {
        return EgressError::Tls { peer: peer.to_owned(), reason: tls_reason(tls) };
    }
    if error.is_connect() {
        return if error.is_timeout() {
            EgressError::TimedOut { phase: Phase::Connect, limit: connect }
        } else {
            EgressError::Connect { peer: peer.to_owned(), reason }
        };
    }
    if error.is_builder() {
        return EgressError::BadUrl(reason);
    }
    match find::<hyper::Error>(&error) {
        Some(h) if h.is_parse() => EgressError::Protocol(reason),
        _ => EgressError::Broken(reason),
    }
}

/// Whether the request died with a pooled connection before any byte of an
/// answer: the one case in which sending it again is safe.
pub(crate) fn died_before_answer(error: &reqwest::Error) -> bool {
    if error.is_connect() || error.is_timeout() || error.is_builder() {
        return false;
    }
    if find::<hyper::Error>(error)
        .is_some_and(|h| h.is_incomplete_message() || h.is_canceled() || h.is_closed())
    {
        return true;
    }
    find::<io::Error>(error).is_some_and(|e| {
        matches!(
            e.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted
        )
    })
}

/// The innermost cause, on one line and shortened.
fn root_cause(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = cause.to_string();
        next = cause.source();
    }
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// The first cause of type `T`; I/O errors are looked into.
fn find<'a, T: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref::<T>() {
            return Some(found);
        }
        if let Some(inner) = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref)
            && let Some(found) = find::<T>(inner)
        {
            return Some(found);
        }
        next = cause.source();
    }
    None
}

fn tls_reason(error: &rustls::Error) -> String {
    use rustls::CertificateError as C;
    match error {
        rustls::Error::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => {
            "its certificate is not valid yet; check the date of this machine".to_owned()
        }
        rustls::Error::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => {
            "its certificate has expired, or the date of this machine is wrong".to_owned()
        }
        rustls::Error::InvalidCertificate(C::UnknownIssuer) => {
            "its certificate was issued by nobody that this machine trusts".to_owned()
        }
        other => other.to_string().chars().take(200).collect(),
    }
}
