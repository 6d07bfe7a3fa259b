//! `POST /start_profile`, `POST /stop_profile`, `POST /profile/dump`,
//! `GET /profile/status` and `GET /profile/trace`.
//!
//! The launcher decides; here its answers become HTTP.

mod download;
mod dump_body;
mod start_body;
mod view;

#[cfg(test)]
pub(super) use dump_body::dump as dump_body;
pub(super) use start_body::start_profile;

use crate::api_error::ApiError;
use crate::app::App;
use crate::fields::Fields;
use crate::waiter::Waiter;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use nano_ipc::profile::{ProfileAnswer, ProfileCommand, ProfileState};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long the launcher may take, which answers within half a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// How much longer where a client waits for whole files.
const WHOLE_WITHIN: Duration = Duration::from_secs(31);

pub(super) async fn start(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let start = read_body(&app, request, start_profile).await?;
    let command = ProfileCommand::Start(Box::new(start));
    let state = done(ask(&app, command, PATIENCE).await?)?;
    Ok(Json(view::newest(&state)))
}

pub(super) async fn dump(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let command = read_body(&app, request, dump_body::dump).await?;
    match ask(&app, command, PATIENCE + WHOLE_WITHIN).await? {
        ProfileAnswer::Failed(reason) => Err(ApiError::unavailable(format!(
            "the dump was not written: {reason}"
        ))),
        answer => Ok(Json(view::newest(&done(answer)?))),
    }
}

/// The fields of a body, which may be absent, as what they mean.
async fn read_body<T: Send + 'static>(
    app: &App,
    request: Request,
    read: fn(&Fields<'_>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let body = app.bodies.read(request.into_body()).await?;
    let len = body.len();
    let parse = move |_: &Waiter| {
        let body = body.trim_ascii();
        // Whatever its type is said to be: clients send forms that are empty.
        let body = match body {
            b"" | b"null" => b"{}",
            body => body,
        };
        read(&Fields::parse(body)?)
    };
    app.preprocess(len, parse).await
}

#[derive(Deserialize)]
pub(super) struct StopQuery {
    wait: Option<String>,
}

pub(super) async fn stop(
    State(app): State<Arc<App>>,
    query: Result<Query<StopQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let wait = match read(query)?.wait.as_deref() {
        None | Some("false" | "0") => false,
        Some("true" | "1" | "") => true,
        Some(_) => return Err(ApiError::invalid("wait", "wait must be true or false")),
    };
    let patience = match wait {
        true => PATIENCE + WHOLE_WITHIN,
        false => PATIENCE,
    };
    let state = done(ask(&app, ProfileCommand::Stop { wait }, patience).await?)?;
    Ok(Json(view::newest(&state)))
}

pub(super) async fn status(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    match ask(&app, ProfileCommand::Status, PATIENCE).await? {
        ProfileAnswer::Off => Ok(Json(json!({"state": "off", "hint": OFF}))),
        answer => Ok(Json(view::all(&done(answer)?))),
    }
}

#[derive(Deserialize)]
pub(super) struct TraceQuery {
    session: Option<String>,
}

pub(super) async fn trace(
    State(app): State<Arc<App>>,
    query: Result<Query<TraceQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let session = read(query)?.session;
    // What is no name is the name of no session.
    let session = session.map(|name| name.parse()).transpose();
    let session = session.map_err(|_| unknown_session())?;
    match ask(&app, ProfileCommand::Files(session), PATIENCE).await? {
        ProfileAnswer::Files {
            dir,
            run,
            session,
            roles,
        } => download::response(dir, run, session, &roles).await,
        answer => Err(refusal(answer)),
    }
}

fn read<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(error) => Err(ApiError::malformed(error.body_text())),
    }
}

/// Asks the launcher, which answers whatever the engine is doing.
async fn ask(
    app: &App,
    command: ProfileCommand,
    patience: Duration,
) -> Result<ProfileAnswer, ApiError> {
    let (sender, receiver) = oneshot::channel();
    let reply = move |answer| {
        // The client may have gone.
        let _ = sender.send(answer);
    };
    app.lifecycle()
        .ask_profiler(command, reply)
        .map_err(|error| ApiError::busy(error.to_string()))?;
    match timeout(patience, receiver).await {
        Ok(Ok(answer)) => Ok(answer),
        _ => Err(ApiError::unavailable(
            "the server's launcher does not answer",
        )),
    }
}

fn done(answer: ProfileAnswer) -> Result<ProfileState, ApiError> {
    match answer {
        ProfileAnswer::Done(state) => Ok(state),
        refused => Err(refusal(refused)),
    }
}

const NO_FLIGHT: &str = "this server keeps nothing that could be dumped: start it with \
                         NANO_PROFILER_MODE=flight (or --profiler-mode flight)";

const OFF: &str = "profiling is not enabled on this server: start it with NANO_PROFILER_DIR \
                   (or --profiler-dir) naming a directory for traces";

fn refusal(answer: ProfileAnswer) -> ApiError {
    match answer {
        ProfileAnswer::Off => ApiError::missing(OFF),
        ProfileAnswer::Busy(session) => ApiError::conflict(format!(
            "session {session} is being recorded already; POST /stop_profile ends it"
        )),
        ProfileAnswer::NoFlight => ApiError::conflict(NO_FLIGHT.to_owned()),
        ProfileAnswer::DumpsWait(waiting) => ApiError::busy(format!(
            "{waiting} dumps are being written; try again later"
        )),
        ProfileAnswer::NoProcess => ApiError::invalid(
            "processes",
            "processes: this server has none of these; GET /profile/status names those it has",
        ),
        ProfileAnswer::Failed(reason) => {
            ApiError::unavailable(format!("no process can record: {reason}"))
        }
        ProfileAnswer::UnknownSession => unknown_session(),
        ProfileAnswer::Done(_) | ProfileAnswer::Files { .. } => {
            ApiError::internal("the launcher answered another question")
        }
    }
}

fn unknown_session() -> ApiError {
    ApiError::missing(
        "there was no such session since this server was started; GET /profile/status names sessions",
    )
}
