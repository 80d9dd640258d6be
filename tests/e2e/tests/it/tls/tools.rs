//! The programs that talk to a fleet over https. Roots of the operator's own are named by `SSL_CERT_FILE`.

use std::path::Path;
use std::process::Stdio;

use sim_engine::Engine;
use tailroute::serve::Server;
use tailroute_e2e::child::tailroute;
use tailroute_e2e::fleet::{configured, quick};
use tailroute_e2e::wait::PATIENCE;

use super::{Authority, encrypted, in_front_of};

/// Runs a command of the router, trusting these roots alone. Returns its output and errors.
async fn run(roots: &Path, arguments: &[&str]) -> String {
    let mut command = tailroute(
        &arguments.iter().map(|&text| text.to_owned()).collect::<Vec<_>>(),
        "",
    );
    command.env("SSL_CERT_FILE", roots);
    let ran = move || {
        // The child exits when its standard input is closed.
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let held = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(held);
        [output.stdout, output.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat()
    };
    tokio::task::spawn_blocking(ran).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_ctl_and_drive_speak_https_and_verify_it() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let [roots, other_roots] = ["roots", "others"].map(|name| folder.path().join(name));
    std::fs::write(&roots, &authority.pem).unwrap();
    std::fs::write(&other_roots, Authority::new().pem).unwrap();
    let engine = Engine::start(quick()).await.unwrap();
    let worker = in_front_of(engine.addr(), &authority.sign(), None).await;
    let mut config = configured(&[worker]);
    encrypted(folder.path(), &authority)(&mut config);
    config.workers[0].url = format!("https://localhost:{}", worker.port()).parse().unwrap();
    config.tls.workers.ca = Some(roots.clone());
    let router = Server::start(config).await.unwrap();
    assert!(router.wait_ready(PATIENCE).await);
    let admin = router.admin_address.to_string();
    let proxied = in_front_of(router.admin_address, &authority.sign(), None).await;
    let url = format!("https://localhost:{}", router.address.port());
    let admin_url = format!("https://localhost:{}", proxied.port());
    let doctor = ["doctor", "--admin", &admin, "--url", &url];
    let drive = [
        "drive",
        "--target",
        &url,
        "--trace",
        "gen:wildchat:1",
        "--turns",
        "3",
        "--speed",
        "1000",
    ];
    let ctl = ["ctl", "--admin", &admin_url, "workers"];
    for (arguments, works) in [
        (&doctor[..], "pieces arrived within"),
        (&drive, "completion_tokens"),
        (&ctl, "ready"),
    ] {
        let said = run(&roots, arguments).await;
        assert!(
            said.contains(works) && !said.contains("certificate"),
            "{arguments:?}: {said}"
        );
        let said = run(&other_roots, arguments).await;
        assert!(
            said.contains("certificate") && said.contains("SSL_CERT_FILE"),
            "{arguments:?}: {said}"
        );
    }
}
