//! The TLS provider and the roots of trust, set up in one place.

use std::sync::{Arc, OnceLock};

use rustls::{ClientConfig, RootCertStore};

/// Installs the process-wide TLS provider (ring). Calling it again does nothing.
pub fn install_tls() {
    // An error means that a provider is there already, which is what we want.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// One configuration for all clients: the system's roots (so that a household's
/// own authority works) merged with the bundled ones (so that a box without
/// `ca-certificates` works). Read once.
pub(crate) fn config() -> ClientConfig {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    CONFIG.get_or_init(build).clone()
}

fn build() -> ClientConfig {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        log::debug!("a system certificate could not be read: {error}");
    }
    let (added, ignored) = roots.add_parsable_certificates(system.certs);
    log::debug!("{added} system roots added, {ignored} ignored");
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundled_roots_are_there_without_system_roots() {
        install_tls();
        install_tls();
        assert!(webpki_roots::TLS_SERVER_ROOTS.len() > 50);
        assert_eq!(config().alpn_protocols, vec![b"http/1.1".to_vec()]);
    }
}
