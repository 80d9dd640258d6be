//! The directives of nginx.

use crate::table::{Row, Takes, built_in, by, none, text};

use super::write::{
    body_size, error_log, header_size, ignored, least_conn, least_time, next_upstream, queue, random,
    read_timeout, set_header, sticky, time, tries, trusted_proxy,
};
use Takes::Any;

const FORWARDS: &str = "answers stream as they come, over connections that are kept";
const PROCESSES: &str = "one process serves all connections; limits.max_connections bounds them";
const LIMITS: &str = "rates belong to keys: set requests_per_s in [[keys]] (docs/admission.md)";
const LOGIN: &str = "clients have keys ([[keys]]); other schemes need a proxy in front. Until there is a key, every caller is admitted";
const SITE: &str = "only the inference APIs are served; serve other paths from a proxy in front";
const LOGS: &str = "requests are in metrics, traces and the decision log";
const TLS: &str = "TLS 1.2 and 1.3 with the library's own ciphers";
const CACHE: &str = "answers are not cached";

pub(crate) const TABLE: &[Row] = &[
    // upstream
    by(
        "server",
        Any,
        "workers.url, failure.breaker_failures, failure.breaker_pause_s, failure.slow_start_s, admission.max_concurrent_per_worker",
        ignored,
    ),
    by("least_conn", Any, "routing.policy", least_conn),
    by("least_time", Any, "routing.policy", least_time),
    by("ip_hash", Any, "routing.policy", sticky),
    by("hash", Any, "routing.policy", sticky),
    by("sticky", Any, "routing.policy", sticky),
    by("random", Any, "routing.policy", random),
    by("queue", Any, "admission.max_queue", queue),
    built_in("keepalive", Any, FORWARDS),
    built_in("keepalive_requests", Any, FORWARDS),
    built_in("keepalive_time", Any, FORWARDS),
    built_in("zone", Any, "one process has the state of all workers"),
    none(
        "health_check",
        Any,
        "workers are probed: set health.path, health.interval_ms, health.unhealthy_after, health.healthy_after",
    ),
    none(
        "resolver",
        Any,
        "the system's resolver is used; discovery.dns follows SRV records",
    ),
    // server
    by("listen", Any, "server.listen", ignored),
    none("server_name", Any, "every host name is served"),
    text("ssl_certificate", "tls.cert_file"),
    text("ssl_certificate_key", "tls.key_file"),
    text("ssl_client_certificate", "tls.client_ca_file"),
    built_in(
        "ssl_verify_client",
        Any,
        "clients' certificates are required where tls.client_ca_file is set",
    ),
    none("ssl_protocols", Any, TLS),
    none("ssl_ciphers", Any, TLS),
    none("ssl_prefer_server_ciphers", Any, TLS),
    none("ssl_session_cache", Any, TLS),
    none("ssl_session_timeout", Any, TLS),
    none("ssl_session_tickets", Any, TLS),
    none("ssl_dhparam", Any, TLS),
    built_in("http2", Any, "HTTP/1.1 and HTTP/2 are served on one port"),
    by("client_max_body_size", Any, "limits.max_body_bytes", body_size),
    by(
        "client_body_timeout",
        Any,
        "limits.body_timeout_s",
        |draft, given| time(draft, given, "limits.body_timeout_s"),
    ),
    by(
        "client_header_timeout",
        Any,
        "limits.header_timeout_s",
        |draft, given| time(draft, given, "limits.header_timeout_s"),
    ),
    by(
        "large_client_header_buffers",
        Any,
        "limits.max_header_bytes",
        header_size,
    ),
    built_in(
        "client_body_buffer_size",
        Any,
        "bodies are kept in memory, within limits.max_unread_bytes",
    ),
    none(
        "keepalive_timeout",
        Any,
        "an idle connection gives way to a new one at limits.max_connections; HTTP/2 ends after limits.idle_timeout_s",
    ),
    none("return", Any, SITE),
    none("rewrite", Any, SITE),
    none("root", Any, SITE),
    none("index", Any, SITE),
    none("alias", Any, SITE),
    none("try_files", Any, SITE),
    none(
        "error_page",
        Any,
        "errors have the form of the API that was called",
    ),
    none(
        "add_header",
        Any,
        "answers' headers are the workers'; use a proxy in front for others",
    ),
    none("gzip", Any, "answers pass as the workers sent them"),
    none("auth_basic", Any, LOGIN),
    none("auth_basic_user_file", Any, LOGIN),
    none("auth_request", Any, LOGIN),
    none("auth_jwt", Any, LOGIN),
    none(
        "allow",
        Any,
        "addresses of clients are not filtered; use a NetworkPolicy or a firewall",
    ),
    none(
        "deny",
        Any,
        "addresses of clients are not filtered; use a NetworkPolicy or a firewall",
    ),
    none("limit_req", Any, LIMITS),
    none("limit_req_zone", Any, LIMITS),
    none("limit_req_status", Any, LIMITS),
    none("limit_conn", Any, LIMITS),
    none("limit_conn_zone", Any, LIMITS),
    none("limit_rate", Any, "answers are not slowed down"),
    by("set_real_ip_from", Any, "http.trusted_proxies", trusted_proxy),
    built_in(
        "real_ip_header",
        Any,
        "http.trusted_proxies says whose X-Forwarded-For counts",
    ),
    built_in(
        "real_ip_recursive",
        Any,
        "http.trusted_proxies says whose X-Forwarded-For counts",
    ),
    // location
    by("proxy_pass", Any, "workers.url", ignored),
    by("proxy_set_header", Any, "workers.api_key_file", set_header),
    none(
        "proxy_pass_header",
        Any,
        "answers' headers are forwarded as docs/http.md says",
    ),
    none(
        "proxy_hide_header",
        Any,
        "answers' headers are forwarded as docs/http.md says",
    ),
    built_in("proxy_http_version", Any, FORWARDS),
    built_in("proxy_buffering", Any, FORWARDS),
    built_in("proxy_buffers", Any, FORWARDS),
    built_in("proxy_buffer_size", Any, FORWARDS),
    built_in("proxy_busy_buffers_size", Any, FORWARDS),
    built_in("proxy_max_temp_file_size", Any, FORWARDS),
    built_in(
        "proxy_request_buffering",
        Any,
        "a body is read before its worker is chosen",
    ),
    built_in("proxy_redirect", Any, FORWARDS),
    built_in("proxy_socket_keepalive", Any, FORWARDS),
    built_in("chunked_transfer_encoding", Any, FORWARDS),
    built_in("tcp_nodelay", Any, FORWARDS),
    built_in("tcp_nopush", Any, FORWARDS),
    built_in("sendfile", Any, FORWARDS),
    by(
        "proxy_connect_timeout",
        Any,
        "limits.connect_timeout_s",
        |draft, given| time(draft, given, "limits.connect_timeout_s"),
    ),
    by(
        "proxy_read_timeout",
        Any,
        "limits.first_byte_timeout_s, limits.idle_timeout_s",
        read_timeout,
    ),
    none(
        "proxy_send_timeout",
        Any,
        "bounded by limits.first_byte_timeout_s",
    ),
    none(
        "send_timeout",
        Any,
        "a client that takes nothing is cut after limits.idle_timeout_s",
    ),
    by("proxy_next_upstream", Any, "limits.retries", next_upstream),
    by("proxy_next_upstream_tries", Any, "limits.retries", tries),
    none(
        "proxy_next_upstream_timeout",
        Any,
        "retries end with the request's deadline (failure.total_timeout_s)",
    ),
    text("proxy_ssl_certificate", "tls.workers.cert_file"),
    text("proxy_ssl_certificate_key", "tls.workers.key_file"),
    text("proxy_ssl_trusted_certificate", "tls.workers.ca_file"),
    none(
        "proxy_ssl_verify",
        Any,
        "certificates of https workers are always verified, by tls.workers.ca_file or the system's roots",
    ),
    none(
        "proxy_ssl_name",
        Any,
        "a worker's certificate must have the host name of its url",
    ),
    built_in("proxy_ssl_server_name", Any, "the host name is sent"),
    none("proxy_cache", Any, CACHE),
    none("proxy_cache_path", Any, CACHE),
    none("proxy_cache_valid", Any, CACHE),
    none("proxy_cache_bypass", Any, CACHE),
    none("proxy_no_cache", Any, CACHE),
    none(
        "proxy_ignore_client_abort",
        Any,
        "a worker's request is cancelled when its client leaves",
    ),
    // the program
    none(
        "include",
        Any,
        "other files are not read: migrate the output of `nginx -T`",
    ),
    none("load_module", Any, "there are no modules"),
    none("access_log", Any, LOGS),
    none("log_format", Any, LOGS),
    none("log_not_found", Any, LOGS),
    by("error_log", Any, "log.level", error_log),
    none("user", Any, "run the process as the user that it shall have"),
    none("pid", Any, "one process; the service manager knows it"),
    none("worker_processes", Any, PROCESSES),
    none("worker_connections", Any, PROCESSES),
    none(
        "worker_rlimit_nofile",
        Any,
        "the limit on open files is raised at the start as far as it may be",
    ),
    none("multi_accept", Any, PROCESSES),
    none("use", Any, PROCESSES),
    none("default_type", Any, SITE),
    none("server_tokens", Any, "no version is sent"),
    none("set", Any, "variables are not evaluated"),
];
