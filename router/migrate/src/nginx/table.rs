use crate::table::{OptionRow, rows};

use super::write::{
    body_size, error_log, header_size, ignored, least_conn, least_time, next_upstream, queue, random,
    read_timeout, set_header, sticky, time, tries, trusted_proxy,
};

const FORWARDS: &str = "answers stream as they come, over connections that are kept";
const PROCESSES: &str = "one process serves all connections; limits.max_connections bounds them";
const LIMITS: &str = "rates belong to keys: set requests_per_s in [[keys]] (docs/admission.md)";
const LOGIN: &str = "clients have keys ([[keys]]); other schemes need a proxy in front. Until there is a key, every caller is admitted";
const SITE: &str = "only the inference APIs are served; serve other paths from a proxy in front";
const LOGS: &str = "requests are in metrics, traces and the decision log";
const TLS: &str = "TLS 1.2 and 1.3 with the library's own ciphers";
const CACHE: &str = "answers are not cached";

pub(crate) const TABLE: &[OptionRow] = rows! {
    by Any "server"
        => ("workers.url, failure.breaker_failures, failure.breaker_pause_s, failure.slow_start_s, admission.max_concurrent_per_worker", ignored);
    by Any "least_conn" => ("routing.policy", least_conn);
    by Any "least_time" => ("routing.policy", least_time);
    by Any "ip_hash" "hash" "sticky" => ("routing.policy", sticky);
    by Any "random" => ("routing.policy", random);
    by Any "queue" => ("admission.max_queue", queue);
    built_in Any "keepalive" "keepalive_requests" "keepalive_time" => (FORWARDS);
    built_in Any "zone" => ("one process has the state of all workers");
    none Any "health_check"
        => ("workers are probed: set health.path, health.interval_ms, health.unhealthy_after, health.healthy_after");
    none Any "resolver" => ("the system's resolver is used; discovery.dns follows SRV records");

    by Any "listen" => ("server.listen", ignored);
    none Any "server_name" => ("every host name is served");
    text One "ssl_certificate" => ("tls.cert_file");
    text One "ssl_certificate_key" => ("tls.key_file");
    text One "ssl_client_certificate" => ("tls.client_ca_file");
    built_in Any "ssl_verify_client"
        => ("clients' certificates are required where tls.client_ca_file is set");
    none Any "ssl_protocols" "ssl_ciphers" "ssl_prefer_server_ciphers" "ssl_session_cache"
        "ssl_session_timeout" "ssl_session_tickets" "ssl_dhparam" => (TLS);
    built_in Any "http2" => ("HTTP/1.1 and HTTP/2 are served on one port");
    by Any "client_max_body_size" => ("limits.max_body_bytes", body_size);
    by Any "client_body_timeout"
        => ("limits.body_timeout_s", |draft, given| time(draft, given, "limits.body_timeout_s"));
    by Any "client_header_timeout"
        => ("limits.header_timeout_s", |draft, given| time(draft, given, "limits.header_timeout_s"));
    by Any "large_client_header_buffers" => ("limits.max_header_bytes", header_size);
    built_in Any "client_body_buffer_size" => ("bodies are kept in memory, within limits.max_unread_bytes");
    none Any "keepalive_timeout"
        => ("for clients, set limits.client_idle_timeout_s (75 s by default); idle connections to workers are kept for 4 s");
    none Any "return" "rewrite" "root" "index" "alias" "try_files" => (SITE);
    none Any "error_page" => ("errors have the form of the API that was called");
    none Any "add_header" => ("answers' headers are the workers'; use a proxy in front for others");
    none Any "gzip" => ("answers pass as the workers sent them");
    none Any "auth_basic" "auth_basic_user_file" "auth_request" "auth_jwt" => (LOGIN);
    none Any "allow" "deny" => ("addresses of clients are not filtered; use a NetworkPolicy or a firewall");
    none Any "limit_req" "limit_req_zone" "limit_req_status" "limit_conn" "limit_conn_zone" => (LIMITS);
    none Any "limit_rate" => ("answers are not slowed down");
    by Any "set_real_ip_from" => ("http.trusted_proxies", trusted_proxy);
    built_in Any "real_ip_header" "real_ip_recursive"
        => ("http.trusted_proxies says whose X-Forwarded-For counts");

    by Any "proxy_pass" => ("workers.url", ignored);
    by Any "proxy_set_header" => ("workers.api_key_file", set_header);
    none Any "proxy_pass_header" "proxy_hide_header"
        => ("answers' headers are forwarded as docs/http.md says");
    built_in Any "proxy_http_version" "proxy_buffering" "proxy_buffers" "proxy_buffer_size"
        "proxy_busy_buffers_size" "proxy_max_temp_file_size" => (FORWARDS);
    built_in Any "proxy_request_buffering" => ("a body is read before its worker is chosen");
    built_in Any "proxy_redirect" "proxy_socket_keepalive" "chunked_transfer_encoding" "tcp_nodelay"
        "tcp_nopush" "sendfile" => (FORWARDS);
    by Any "proxy_connect_timeout"
        => ("limits.connect_timeout_s", |draft, given| time(draft, given, "limits.connect_timeout_s"));
    by Any "proxy_read_timeout" => ("limits.first_byte_timeout_s, limits.idle_timeout_s", read_timeout);
    none Any "proxy_send_timeout" => ("bounded by limits.first_byte_timeout_s");
    none Any "send_timeout" => ("a client that takes nothing is cut after limits.idle_timeout_s");
    by Any "proxy_next_upstream" => ("limits.retries", next_upstream);
    by Any "proxy_next_upstream_tries" => ("limits.retries", tries);
    none Any "proxy_next_upstream_timeout"
        => ("retries end with the request's deadline (failure.total_timeout_s)");
    text One "proxy_ssl_certificate" => ("tls.workers.cert_file");
    text One "proxy_ssl_certificate_key" => ("tls.workers.key_file");
    text One "proxy_ssl_trusted_certificate" => ("tls.workers.ca_file");
    none Any "proxy_ssl_verify"
        => ("certificates of https workers are always verified, by tls.workers.ca_file or the system's roots");
    none Any "proxy_ssl_name" => ("a worker's certificate must have the host name of its url");
    built_in Any "proxy_ssl_server_name" => ("the host name is sent");
    none Any "proxy_cache" "proxy_cache_path" "proxy_cache_valid" "proxy_cache_bypass" "proxy_no_cache"
        => (CACHE);
    none Any "proxy_ignore_client_abort" => ("a worker's request is cancelled when its client leaves");

    none Any "include" => ("other files are not read: migrate the output of `nginx -T`");
    none Any "load_module" => ("there are no modules");
    none Any "access_log" "log_format" "log_not_found" => (LOGS);
    by Any "error_log" => ("log.level", error_log);
    none Any "user" => ("run the process as the user that it shall have");
    none Any "pid" => ("one process; the service manager knows it");
    none Any "worker_processes" "worker_connections" => (PROCESSES);
    none Any "worker_rlimit_nofile" => ("the limit on open files is raised at the start as far as it may be");
    none Any "multi_accept" "use" => (PROCESSES);
    none Any "default_type" => (SITE);
    none Any "server_tokens" => ("no version is sent");
    none Any "set" => ("variables are not evaluated");
};
