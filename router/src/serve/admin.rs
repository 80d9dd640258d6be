//! The admin port: metrics, why the router does what it does, whether it lives and is ready. Never on the data port.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tracing::error;

use crate::app::App;
use crate::feedback::{SloState, explain};
use crate::reload;

/// Serves the admin port for as long as the task lives.
pub(super) async fn run(app: Arc<App>, listener: TcpListener) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .route("/admin/v1/slo", get(explained))
        .route("/admin/v1/config", get(reloads))
        .with_state(app);
    if let Err(error) = axum::serve(listener, router).await {
        error!(%error, "the admin port stopped");
    }
}

async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    match app.metrics.render(&app.gauges()) {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn explained(State(app): State<Arc<App>>) -> Json<SloState> {
    Json(explain(&app))
}

/// Which configuration is in force, and what is wrong with the last one that was read.
async fn reloads(State(app): State<Arc<App>>) -> Json<reload::State> {
    Json(app.reloads.lock().clone())
}

/// Ready while some worker is, and not draining. A router that drains lives on but is not ready.
async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    if app.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if app.fleet.any_ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no worker is ready\n")
    }
}
