//! Detects whether an engine's 404 says that it lacks the requested model.
//!
//! Engines also answer 404 for a stored response that they do not have, or a path that they do not serve.

/// Number of bytes of an answer that are searched.
const LOOKED_AT: usize = 4096;

/// Returns whether the beginning of a 404's body says that the engine lacks the model: by OpenAI's code, or in words as
/// vLLM and others write them.
#[must_use]
pub fn lacks_model(body: &[u8]) -> bool {
    let body = &body[..body.len().min(LOOKED_AT)];
    let text = String::from_utf8_lossy(body).to_ascii_lowercase();
    let in_words = || {
        text.contains("model")
            && [
                "does not exist",
                "not found",
                "not exist",
                "unknown model",
                "no such model",
            ]
            .iter()
            .any(|words| text.contains(words))
    };
    text.contains("model_not_found") || (in_words() && !text.contains("response with id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_model_is_told_from_anything_else_that_is_missing() {
        for body in [
            r#"{"error":{"message":"The model `nope` does not exist.","type":"NotFoundError","param":"model","code":404}}"#,
            r#"{"error":{"message":"The model does not exist.","code":404}}"#,
            r#"{"error":{"code":"model_not_found","message":"no"}}"#,
            r#"{"error":"model 'llama9' not found, try pulling it first"}"#,
        ] {
            assert!(lacks_model(body.as_bytes()), "{body}");
        }
        for body in [
            r#"{"detail":"Not Found"}"#,
            r#"{"error":{"message":"Response with id 'resp_1' of this model not found.","code":404}}"#,
            "<html>404 page not found</html>",
            "",
            "\u{fffd}",
        ] {
            assert!(!lacks_model(body.as_bytes()), "{body}");
        }
        let late = format!("{}{}", "x".repeat(LOOKED_AT), "model_not_found");
        assert!(!lacks_model(late.as_bytes()));
    }
}
