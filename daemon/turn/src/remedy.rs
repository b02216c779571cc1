//! A model failure in two sentences: what happened and what to do.

use crate::model::ModelFailure;

/// The class recorded in the audit log.
pub(crate) fn class(failure: &ModelFailure) -> &'static str {
    match failure {
        ModelFailure::Unreachable(_) => "unreachable",
        ModelFailure::TimedOut(_) => "timed_out",
        ModelFailure::Busy { .. } => "busy",
        ModelFailure::ContextOverflow { .. } => "context_overflow",
        ModelFailure::ModelNotFound(_) => "model_not_found",
        ModelFailure::ToolsUnsupported(_) => "tools_unsupported",
        ModelFailure::Unauthorised(_) => "unauthorised",
        ModelFailure::Rejected(_) => "rejected",
        ModelFailure::Incomplete(_) => "incomplete",
        ModelFailure::Malformed(_) => "malformed",
    }
}

/// What happened, and what to do.
pub(crate) fn sentences(failure: &ModelFailure) -> (String, String) {
    let remedy = match failure {
        ModelFailure::Unreachable(_) => {
            "Check that the model server is running and that its address in the settings is right; then ask again.".to_owned()
        }
        ModelFailure::TimedOut(_) => "Ask again; if it happens often, use a smaller model or raise the time-outs in the settings.".to_owned(),
        ModelFailure::Busy { retry_after_s: Some(s), .. } => format!("Ask again in {s} seconds."),
        ModelFailure::Busy { .. } => "Ask again in a minute.".to_owned(),
        ModelFailure::ContextOverflow { .. } => "Send a shorter message, or raise context_tokens in the settings if the model allows it.".to_owned(),
        ModelFailure::ModelNotFound(model) => {
            format!("Install it on the model server (for Ollama: ollama pull {model}) or name another model in the settings.")
        }
        ModelFailure::ToolsUnsupported(_) => "Choose a model that can call tools.".to_owned(),
        ModelFailure::Unauthorised(_) => "Check the key of this endpoint.".to_owned(),
        ModelFailure::Rejected(_) | ModelFailure::Malformed(_) => {
            "Check that the endpoint's wire format and model in the settings fit the server.".to_owned()
        }
        ModelFailure::Incomplete(_) => "Ask again; if it happens often, look at the model server's own log.".to_owned(),
    };
    (failure.to_string(), remedy)
}
