//! Authentication of the API server by its certificate, and of the router by its token. A kubelet renews both files
//! while the router runs.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use sim_engine::Engine;
use tailroute_e2e::fleet::quick;
use tailroute_e2e::wait::within;
use tempfile::TempDir;

use super::api::Api;
use super::kubernetes::{SERVICES, ready, slice};
use super::{Finding, engine};

/// A cluster's certificate authority.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// Returns a server's TLS configuration for this name or address.
    fn certify(&self, name: &str) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap()
    }
}

/// A cluster: an API server, an engine in its endpoints, and the files of a pod.
struct Cluster {
    authority: Authority,
    api: Api,
    engine: Engine,
    folder: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let (authority, engine) = (Authority::new(), engine(quick()).await);
        let api = Api::encrypted("127.0.0.1:0".parse().unwrap(), authority.certify("127.0.0.1")).await;
        api.put(slice("a", engine.addr(), ready()));
        api.ask_for("first");
        let cluster = Self {
            authority,
            api,
            engine,
            folder: tempfile::tempdir().unwrap(),
        };
        cluster.give("ca.crt", &cluster.authority.pem);
        cluster.give("token", "first\n");
        cluster
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Replaces a file of the pod atomically, as a kubelet does.
    fn give(&self, file: &str, text: &str) {
        let new = self.path("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path(file)).unwrap();
    }

    /// Starts the router in that pod.
    async fn router(&self) -> Finding {
        let config = self.api.config(SERVICES).replace("http://", "https://");
        let path = |file: &str| self.path(file).display().to_string();
        Finding::start(&format!(
            "{config}token_file = {:?}\nca_file = {:?}\n",
            path("token"),
            path("ca.crt")
        ))
        .await
    }
}

/// Waits until the source fails for a reason that contains this text.
async fn until_failing_for(finding: &Finding, why: &str) {
    within(async { while !finding.until_failing().await.contains(why) {} }).await;
}

/// Checks that the last known worker is kept and serves.
async fn knows_a(finding: &Finding) {
    assert_eq!(finding.names(), ["a"]);
    assert_eq!(finding.chat().await.status, 200);
}

#[tokio::test]
async fn an_api_server_with_a_certificate_of_the_pods_root_is_trusted() {
    let cluster = Cluster::start().await;
    let finding = cluster.router().await;
    finding.until_ready(&["a"]).await;
    knows_a(&finding).await;
    assert!(finding.source().await["failure"].is_null());
}

#[tokio::test]
async fn an_impostor_gets_no_token_and_removes_no_worker() {
    let mut cluster = Cluster::start().await;
    let finding = cluster.router().await;
    finding.until_ready(&["a"]).await;
    let stranger = Authority::new();
    let address = cluster.api.leave().await;
    cluster.api = Api::encrypted(address, stranger.certify("127.0.0.1")).await;
    cluster.api.ask_for("first");
    until_failing_for(&finding, "invalid peer certificate").await;
    assert_eq!(cluster.api.asked(), [], "it was shown no token");
    knows_a(&finding).await;
    // The cluster gets a new authority, and the pod its root.
    let late = engine(quick()).await;
    cluster.api.put(slice("a", cluster.engine.addr(), ready()));
    cluster.api.put(slice("late", late.addr(), ready()));
    cluster.api.forget();
    cluster.give("ca.crt", &stranger.pem);
    finding.until_heard_again().await;
    finding.until_ready(&["a", "late"]).await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_rejected() {
    let mut cluster = Cluster::start().await;
    let other = cluster.authority.certify("kubernetes.default.svc");
    let address = cluster.api.leave().await;
    cluster.api = Api::encrypted(address, other).await;
    let finding = cluster.router().await;
    until_failing_for(&finding, "certificate not valid for name").await;
    assert_eq!(cluster.api.asked(), []);
}

#[tokio::test]
async fn a_renewed_token_is_used_from_then_on() {
    let cluster = Cluster::start().await;
    let finding = cluster.router().await;
    finding.until_ready(&["a"]).await;
    cluster.api.until_more("watch", 0).await;
    cluster.give("token", "second\n");
    cluster.api.ask_for("second");
    cluster.api.cut();
    cluster.api.until_more("watch", 1).await;
    let late = engine(quick()).await;
    cluster.api.put(slice("late", late.addr(), ready()));
    finding.until_ready(&["late"]).await;
    let failures = finding
        .metrics()
        .await
        .sum("tailroute_discovery_failures_total", &[]);
    assert_eq!(failures, 0.0, "the old one was not shown again");
}

#[tokio::test]
async fn a_rejected_token_is_reported_and_removes_no_worker() {
    let cluster = Cluster::start().await;
    let finding = cluster.router().await;
    finding.until_ready(&["a"]).await;
    cluster.api.until_more("watch", 0).await;
    cluster.api.ask_for("second");
    cluster.api.cut();
    until_failing_for(&finding, "the API server rejects the router's token").await;
    knows_a(&finding).await;
    cluster.give("token", "\n");
    until_failing_for(&finding, "token contains no token").await;
    std::fs::remove_file(cluster.path("token")).unwrap();
    until_failing_for(&finding, "token cannot be read").await;
    knows_a(&finding).await;
    cluster.give("token", "second");
    finding.until_heard_again().await;
    knows_a(&finding).await;
}
