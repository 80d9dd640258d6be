//! The model that decides which workers may get a relayed request.
//!
//! While all workers serve the same models, a body is passed on as it comes. Where their models differ, it is read
//! until it has named one, within `limits.max_body_bytes` and `limits.max_unread_bytes`. A request whose model cannot
//! be read is refused: it might go to a worker of another model.

use protocol::error::ApiError;
use protocol::model::{self, Named};
use protocol::routes::Route;

use super::inspect::Search;
use state::Routing;

/// Returns how much of a request's body is searched for its model.
pub fn search(routing: &Routing, route: &Route) -> Search {
    if routing.fleet.models_differ() {
        Search::Whole
    } else if matches!(route, Route::Upload(_)) {
        Search::Beginning
    } else {
        Search::Nothing
    }
}

/// Returns the model of a request: that of its body, as engines read it, or else that of its query. `None` if the
/// request names none. Fails with 400 if the model decides the worker and cannot be read.
pub fn model(named: Named, query: Option<&str>, search: Search) -> Result<Option<String>, ApiError> {
    match (named, search) {
        (Named::Model(model), _) => Ok(Some(model)),
        (named, Search::Whole) => match (query_model(query), named) {
            (None, Named::Unread) => Err(ApiError::UnreadModel),
            (model, _) => Ok(model),
        },
        _ => Ok(None),
    }
}

/// Returns the model of a WebSocket, which names it in its query or in a later message. Fails like [`model`].
pub fn tunnel(routing: &Routing, query: Option<&str>) -> Result<Option<String>, ApiError> {
    match query_model(query) {
        None if routing.fleet.models_differ() => Err(ApiError::UnreadModel),
        model => Ok(model),
    }
}

fn query_model(query: Option<&str>) -> Option<String> {
    match model::in_query(query?.as_bytes()) {
        Named::Model(model) => Some(model),
        Named::Nothing | Named::Unread => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_whose_model_was_not_read_goes_nowhere_if_models_differ() {
        let named = |name: &str| Named::Model(name.to_owned());
        let some = |name: &str| Ok(Some(name.to_owned()));
        for (body, query, search, expected) in [
            (named("a"), Some("model=b"), Search::Whole, some("a")),
            (named("a"), None, Search::Beginning, some("a")),
            (Named::Nothing, Some("model=b"), Search::Whole, some("b")),
            (Named::Unread, Some("x&model=b%20c"), Search::Whole, some("b c")),
            (Named::Nothing, None, Search::Whole, Ok(None)),
            (Named::Nothing, Some("model="), Search::Whole, Ok(None)),
            (Named::Unread, None, Search::Whole, Err("model_not_read")),
            (
                Named::Unread,
                Some("model="),
                Search::Whole,
                Err("model_not_read"),
            ),
            (Named::Unread, None, Search::Beginning, Ok(None)),
            (Named::Unread, None, Search::Nothing, Ok(None)),
        ] {
            let what = format!("{body:?} {query:?} {search:?}");
            let found = model(body, query, search).map_err(|error| error.code());
            assert_eq!(found, expected, "{what}");
        }
    }
}
