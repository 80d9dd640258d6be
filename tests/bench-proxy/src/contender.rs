//! The servers that are compared, each configured as its users would, with one thread where that is an option.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// A server between clients and engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Contender {
    /// No server: the clients connect to an engine.
    Direct,
    /// nginx, as a plain proxy.
    Nginx,
    /// HAProxy, as a plain proxy.
    Haproxy,
    /// Envoy, as a plain proxy.
    Envoy,
    /// SGLang's router, cache-aware.
    SglangRouter,
    /// SMG, its successor, cache-aware.
    Smg,
    /// vLLM's fork of it, cache-aware.
    VllmRouter,
    /// tailroute with its defaults: routing, metrics and hints on.
    Tailroute,
}

/// Locations of programs and files.
#[derive(Debug)]
pub(crate) struct Places {
    /// The folder of tailroute's binary.
    pub bin: PathBuf,
    /// The environment built by `scripts/peers`.
    pub peers: PathBuf,
    /// The folder of configurations and logs.
    pub folder: PathBuf,
}

impl Contender {
    /// All contenders, in the table's order.
    pub(crate) const ALL: [Self; 8] = [
        Self::Direct,
        Self::Haproxy,
        Self::Nginx,
        Self::Envoy,
        Self::SglangRouter,
        Self::Smg,
        Self::VllmRouter,
        Self::Tailroute,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::SglangRouter => "sglang-router",
            Self::Smg => "smg",
            Self::VllmRouter => "vllm-router",
            Self::Tailroute => "tailroute",
        }
    }

    fn program(self, places: &Places) -> PathBuf {
        match self {
            Self::Direct => PathBuf::new(),
            Self::Nginx => on_path("nginx"),
            Self::Haproxy => on_path("haproxy"),
            Self::Envoy | Self::Smg | Self::VllmRouter => places.peers.join("bin").join(self.name()),
            Self::SglangRouter => places.peers.join("bin/python"),
            Self::Tailroute => places.bin.join("tailroute"),
        }
    }

    pub(crate) fn version(self, places: &Places) -> anyhow::Result<String> {
        let program = self.program(places);
        let mut asked = Command::new(&program);
        match self {
            Self::Direct => return Ok(String::new()),
            Self::Nginx | Self::Haproxy => asked.arg("-v"),
            Self::Envoy | Self::Tailroute => asked.arg("--version"),
            Self::SglangRouter | Self::Smg | Self::VllmRouter => {
                let package = format!(
                    "import importlib.metadata as m; print(m.version('{}'))",
                    self.name()
                );
                asked = Command::new(places.peers.join("bin/python"));
                asked.args(["-c", &package])
            }
        };
        let said = asked
            .output()
            .with_context(|| format!("{} is not installed", program.display()))?;
        anyhow::ensure!(said.status.success(), "is not installed");
        let said = [said.stdout, said.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let number = said
            .split(|char: char| char.is_whitespace() || char == '/')
            .find(|word| word.starts_with(|char: char| char.is_ascii_digit()) && word.contains('.'));
        Ok(number.unwrap_or(said.trim()).to_owned())
    }

    /// Returns the command that starts it on port `port` (with `port + 1` for its own use) in front of `engines`.
    pub(crate) fn command(
        self,
        places: &Places,
        port: u16,
        engines: &[SocketAddr],
    ) -> anyhow::Result<Option<Command>> {
        let mut command = Command::new(self.program(places));
        let config = places.folder.join(format!("{}.conf", self.name()));
        let urls = engines.iter().map(|engine| format!("http://{engine}"));
        let write = |text: String| std::fs::write(&config, text);
        let own = (port + 1).to_string();
        match self {
            Self::Direct => return Ok(None),
            Self::Nginx => {
                write(nginx(port, engines, &places.folder))?;
                command.arg("-p").arg(&places.folder).arg("-c").arg(&config);
            }
            Self::Haproxy => {
                write(haproxy(port, engines))?;
                command.arg("-db").arg("-f").arg(&config);
            }
            Self::Envoy => {
                let config = config.with_extension("json");
                std::fs::write(&config, envoy(port, engines).to_string())?;
                command.args([
                    "--concurrency",
                    "1",
                    "--log-level",
                    "warn",
                    "--use-dynamic-base-id",
                    "-c",
                ]);
                command.arg(&config);
            }
            Self::Tailroute => {
                write(tailroute(port, engines))?;
                command.args(["serve", "--config"]).arg(&config);
            }
            Self::SglangRouter => {
                command.args(["-m", "sglang_router.launch_router"]);
                router(&mut command, port, &own, urls, "warn");
            }
            Self::Smg => {
                command.arg("launch");
                router(&mut command, port, &own, urls, "warn");
            }
            Self::VllmRouter => router(&mut command, port, &own, urls, "warning"),
        }
        Ok(Some(command))
    }
}

/// Returns the path of a program. Debian installs servers in folders of root's `PATH`.
fn on_path(name: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(name))
}

/// Adds the arguments of SGLang's router and its two descendants.
fn router(command: &mut Command, port: u16, own: &str, urls: impl Iterator<Item = String>, level: &str) {
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--policy", "cache_aware", "--log-level", level]);
    command.args(["--prometheus-host", "127.0.0.1", "--prometheus-port", own]);
    command.arg("--worker-urls").args(urls);
}

fn nginx(port: u16, engines: &[SocketAddr], folder: &Path) -> String {
    let folder = folder.display();
    let user = if nix::unistd::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let mut servers = String::new();
    for engine in engines {
        let _ = write!(servers, "server {engine}; ");
    }
    format!(
        "daemon off; {user} worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 2m; keepalive_requests 100000000;
  client_body_temp_path {folder}/nginx-body; proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi; uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  upstream engines {{ {servers} keepalive 2048; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"
    )
}

/// Returns HAProxy's configuration. Without `http-no-delay` it would delay chunks.
fn haproxy(port: u16, engines: &[SocketAddr]) -> String {
    let mut text = format!(
        "global
  nbthread 1
  maxconn 8192
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  default_backend engines
backend engines
"
    );
    for (number, engine) in engines.iter().enumerate() {
        let _ = writeln!(text, "  server engine{number} {engine}");
    }
    text
}

fn envoy(port: u16, engines: &[SocketAddr]) -> serde_json::Value {
    let address = |address: &SocketAddr| serde_json::json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } });
    let endpoints: Vec<_> = engines
        .iter()
        .map(|engine| serde_json::json!({ "endpoint": { "address": address(engine) } }))
        .collect();
    let limits =
        serde_json::json!({ "max_connections": 8192, "max_pending_requests": 8192, "max_requests": 8192 });
    serde_json::json!({ "static_resources": {
        "listeners": [{
            "address": address(&SocketAddr::from(([127, 0, 0, 1], port))),
            "filter_chains": [{ "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    "stat_prefix": "clients",
                    "route_config": { "virtual_hosts": [{
                        "name": "all", "domains": ["*"],
                        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "engines", "timeout": "0s" } }],
                    }] },
                    "http_filters": [{
                        "name": "envoy.filters.http.router",
                        "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                        },
                    }],
                },
            }] }],
        }],
        "clusters": [{
            "name": "engines", "type": "STATIC", "connect_timeout": "5s",
            "circuit_breakers": { "thresholds": [limits] },
            "load_assignment": { "cluster_name": "engines", "endpoints": [{ "lb_endpoints": endpoints }] },
        }],
    } })
}

fn tailroute(port: u16, engines: &[SocketAddr]) -> String {
    let mut text = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n[log]\nlevel = \"warn\"\n",
        port + 1
    );
    for engine in engines {
        let _ = write!(text, "[[workers]]\nurl = \"http://{engine}\"\n");
    }
    text
}
