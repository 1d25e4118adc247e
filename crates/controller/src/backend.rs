//! The engine's side of a backend: [`Backend`] is `dyn`, so the engine compiles once and faults are decorators;
//! [`Typed`] makes one of any [`Provisioner`].

use crate::names::{ON_DELETE_PARAMETER, TRASH_FOR_PARAMETER};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;
use volwright_provisioner::{
    BoxFuture, Capabilities, Capacity, Check, Failure, InventoryItem, Key, Mark, Observed, ParameterMap,
    Progress, Provisioned, Provisioner, Request, Result, Trashed, VolumeSource, parameter_problems,
    parse_parameters,
};

/// A handle as it is stored: who wrote it, in which version, and the backend's own JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Version of the handle's layout.
    pub version: u16,
    /// [`Provisioner::BACKEND`] of the writer.
    pub backend: String,
    /// The handle.
    pub handle: Value,
}

/// Why a stored handle cannot be used. None of these ever leads to a delete.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandleError {
    /// Not an envelope at all.
    #[error("the annotation volwright.io/handle is not readable: {0}")]
    Undecodable(String),
    /// Another backend's.
    #[error("the annotation volwright.io/handle belongs to the backend {0:?}")]
    OtherBackend(String),
    /// Written by a later release.
    #[error(
        "the annotation volwright.io/handle has version {found}; this release reads up to {known}: upgrade"
    )]
    Newer {
        /// Version found.
        found: u16,
        /// Highest version known.
        known: u16,
    },
}

impl Envelope {
    /// Reads the annotation's text.
    pub fn parse(text: &str) -> Result<Self, HandleError> {
        serde_json::from_str(text).map_err(|error| HandleError::Undecodable(error.to_string()))
    }

    /// The annotation's text.
    pub fn to_text(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

/// [`Provisioner`] without its types. Every method but the pure ones is called under a deadline.
pub trait Backend: Send + Sync + 'static {
    /// Short name.
    fn name(&self) -> &'static str;
    /// What a class offers. `Err` is `Invalid`: unknown or unreadable parameters, with the list of known ones.
    fn capabilities(&self, parameters: &ParameterMap) -> Result<Capabilities>;
    /// All that is wrong with a class's parameters. Empty where [`capabilities`](Self::capabilities) succeeds.
    fn parameter_problems(&self, parameters: &ParameterMap) -> Vec<String> {
        refusal(self.capabilities(parameters))
    }
    /// The handle as this release writes it, so that one that an earlier or the next one wrote compares equal with its own.
    fn current(&self, handle: &Envelope) -> Result<Envelope, HandleError>;
    /// What the PV says.
    fn source(&self, handle: &Envelope) -> Result<VolumeSource, HandleError>;
    /// Names of the data behind a source.
    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key>;
    /// See [`Provisioner::same_volume`]; `false` where one cannot be read.
    fn same_volume(&self, planned: &Envelope, completed: &Envelope) -> bool;
    /// See [`Provisioner::fits`]; `false` where the handle or parameters cannot be read.
    fn fits(&self, request: &Request<ParameterMap>, handle: &Envelope) -> bool;
    /// See [`Provisioner::plan`].
    fn plan<'a>(&'a self, request: &'a Request<ParameterMap>) -> BoxFuture<'a, Result<Envelope>>;
    /// See [`Provisioner::observe`].
    fn observe<'a>(&'a self, handle: &'a Envelope) -> BoxFuture<'a, Result<Option<Observed>>>;
    /// See [`Provisioner::provision`].
    fn provision<'a>(
        &'a self,
        request: &'a Request<ParameterMap>,
        handle: &'a Envelope,
    ) -> BoxFuture<'a, Result<Progress<Provisioned<Envelope>>>>;
    /// See [`Provisioner::delete`].
    fn delete<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<Progress<()>>>;
    /// See [`Provisioner::set_mark`].
    fn set_mark<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<()>>;
    /// See [`Provisioner::expand`]. `size` in bytes; answers what the volume has then.
    fn expand<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        size: u64,
    ) -> BoxFuture<'a, Result<Progress<u64>>>;
    /// See [`Provisioner::trash`].
    fn trash<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        trashed: &'a Trashed,
    ) -> BoxFuture<'a, Result<Progress<Option<Trashed>>>>;
    /// See [`Provisioner::restore`].
    fn restore<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<Progress<()>>>;
    /// See [`Provisioner::purge`].
    fn purge<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        judged: &'a Trashed,
    ) -> BoxFuture<'a, Result<Progress<()>>>;
    /// See [`Provisioner::inventory`].
    fn inventory(&self) -> BoxFuture<'_, Result<Vec<InventoryItem<Envelope>>>>;
    /// See [`Provisioner::capacity`].
    fn capacity<'a>(&'a self, parameters: &'a ParameterMap) -> BoxFuture<'a, Result<Vec<Capacity>>>;
    /// See [`Provisioner::check`].
    fn check(&self) -> BoxFuture<'_, Vec<Check>>;
}

/// Any [`Provisioner`] as a [`Backend`].
pub struct Typed<P>(Arc<P>);

impl<P: Provisioner> Typed<P> {
    /// Wraps a connected backend.
    pub fn new(provisioner: Arc<P>) -> Self {
        Self(provisioner)
    }

    fn wrap(handle: &P::Handle) -> Result<Envelope> {
        let handle = serde_json::to_value(handle).map_err(|error| {
            Failure::invalid("the backend made a handle that is not JSON").caused_by(error)
        })?;
        Ok(Envelope { version: P::HANDLE_VERSION, backend: P::BACKEND.to_owned(), handle })
    }

    fn unwrap(envelope: &Envelope) -> Result<P::Handle, HandleError> {
        if envelope.backend != P::BACKEND {
            return Err(HandleError::OtherBackend(envelope.backend.clone()));
        }
        let (found, known) = (envelope.version, P::HANDLE_VERSION);
        if found == known {
            return P::Handle::deserialize(&envelope.handle)
                .map_err(|error| HandleError::Undecodable(error.to_string()));
        }
        P::upgrade(found, envelope.handle.clone()).ok_or_else(|| {
            if found > known {
                HandleError::Newer { found, known }
            } else {
                HandleError::Undecodable(format!("version {found} is too old"))
            }
        })
    }

    /// A handle that cannot be read keeps its data until somebody looks.
    fn open(envelope: &Envelope) -> Result<P::Handle> {
        Self::unwrap(envelope)
            .map_err(|error| Failure::blocked(volwright_provisioner::Until::OperatorActs, error.to_string()))
    }

    fn parameters(map: &ParameterMap) -> Result<P::Parameters> {
        parse_parameters(&without_engine_keys(map)).map_err(|error| {
            let also = format!("{ON_DELETE_PARAMETER} and {TRASH_FOR_PARAMETER} are known for every class");
            Failure::invalid(format!("the storage class's parameters are refused: {error}; {also}"))
        })
    }

    fn typed(request: &Request<ParameterMap>) -> Result<Request<P::Parameters>> {
        let parameters = Self::parameters(&request.parameters)?;
        Ok(request.clone().with_parameters(parameters))
    }
}

fn refusal(offered: Result<Capabilities>) -> Vec<String> {
    offered.err().map(|failure| failure.message().to_owned()).into_iter().collect()
}

/// All that is wrong with a class's parameters, as far as it can be told without a backend that is connected.
pub fn problems_of_class<P: Provisioner>(parameters: &ParameterMap) -> Vec<String> {
    let problems = parameter_problems::<P::Parameters>(&without_engine_keys(parameters));
    problems.iter().map(ToString::to_string).collect()
}

/// The engine's own keys are taken off before the backend sees the parameters.
fn without_engine_keys(map: &ParameterMap) -> ParameterMap {
    map.iter()
        .filter(|(key, _)| ![ON_DELETE_PARAMETER, TRASH_FOR_PARAMETER].contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect::<BTreeMap<_, _>>()
}

impl<P: Provisioner> Backend for Typed<P> {
    fn name(&self) -> &'static str {
        P::BACKEND
    }

    fn capabilities(&self, parameters: &ParameterMap) -> Result<Capabilities> {
        self.0.capabilities(&Self::parameters(parameters)?)
    }

    fn parameter_problems(&self, parameters: &ParameterMap) -> Vec<String> {
        let problems = problems_of_class::<P>(parameters);
        if problems.is_empty() { refusal(self.capabilities(parameters)) } else { problems }
    }

    fn current(&self, handle: &Envelope) -> Result<Envelope, HandleError> {
        let undecodable = |error: &dyn std::error::Error| HandleError::Undecodable(error.to_string());
        Self::wrap(&Self::unwrap(handle)?).map_err(|error| undecodable(&error))
    }

    fn source(&self, handle: &Envelope) -> Result<VolumeSource, HandleError> {
        Ok(self.0.source(&Self::unwrap(handle)?))
    }

    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
        self.0.alias_keys(source)
    }

    fn same_volume(&self, planned: &Envelope, completed: &Envelope) -> bool {
        match (Self::unwrap(planned), Self::unwrap(completed)) {
            (Ok(planned), Ok(completed)) => self.0.same_volume(&planned, &completed),
            _ => false,
        }
    }

    fn fits(&self, request: &Request<ParameterMap>, handle: &Envelope) -> bool {
        match (Self::typed(request), Self::unwrap(handle)) {
            (Ok(request), Ok(handle)) => self.0.fits(&request, &handle),
            _ => false,
        }
    }

    fn plan<'a>(&'a self, request: &'a Request<ParameterMap>) -> BoxFuture<'a, Result<Envelope>> {
        Box::pin(async move { Self::wrap(&self.0.plan(&Self::typed(request)?).await?) })
    }

    fn observe<'a>(&'a self, handle: &'a Envelope) -> BoxFuture<'a, Result<Option<Observed>>> {
        Box::pin(async move { self.0.observe(&Self::open(handle)?).await })
    }

    fn provision<'a>(
        &'a self,
        request: &'a Request<ParameterMap>,
        handle: &'a Envelope,
    ) -> BoxFuture<'a, Result<Progress<Provisioned<Envelope>>>> {
        Box::pin(async move {
            let planned = Self::open(handle)?;
            let progress = self.0.provision(&Self::typed(request)?, &planned).await?;
            Ok(match progress {
                Progress::Done(made) => Progress::Done(Provisioned {
                    handle: Self::wrap(&made.handle)?,
                    size: made.size,
                    topology: made.topology,
                }),
                Progress::Pending { after, note } => Progress::Pending { after, note },
            })
        })
    }

    fn delete<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<Progress<()>>> {
        Box::pin(async move { self.0.delete(&Self::open(handle)?, mark).await })
    }

    fn set_mark<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.0.set_mark(&Self::open(handle)?, mark).await })
    }

    fn expand<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        size: u64,
    ) -> BoxFuture<'a, Result<Progress<u64>>> {
        Box::pin(async move { self.0.expand(&Self::open(handle)?, mark, size).await })
    }

    fn trash<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        trashed: &'a Trashed,
    ) -> BoxFuture<'a, Result<Progress<Option<Trashed>>>> {
        Box::pin(async move { self.0.trash(&Self::open(handle)?, mark, trashed).await })
    }

    fn restore<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<Progress<()>>> {
        Box::pin(async move { self.0.restore(&Self::open(handle)?, mark).await })
    }

    fn purge<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        judged: &'a Trashed,
    ) -> BoxFuture<'a, Result<Progress<()>>> {
        Box::pin(async move { self.0.purge(&Self::open(handle)?, mark, judged).await })
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<InventoryItem<Envelope>>>> {
        Box::pin(async move {
            let items = self.0.inventory().await?;
            items
                .into_iter()
                .map(|item| {
                    let handle = Self::wrap(&item.handle)?;
                    let InventoryItem { observed, intent, trashed, .. } = item;
                    Ok(InventoryItem { handle, observed, intent, trashed })
                })
                .collect()
        })
    }

    fn capacity<'a>(&'a self, parameters: &'a ParameterMap) -> BoxFuture<'a, Result<Vec<Capacity>>> {
        Box::pin(async move { self.0.capacity(&Self::parameters(parameters)?).await })
    }

    fn check(&self) -> BoxFuture<'_, Vec<Check>> {
        Box::pin(self.0.check())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shelf::Shelf;
    use serde_json::json;

    fn written(version: u16, handle: Value) -> Envelope {
        Envelope { version, backend: "shelf".to_owned(), handle }
    }

    /// A cluster is upgraded, and goes back one release, with volumes of both.
    #[test]
    fn a_handle_of_the_release_before_and_of_the_next_one_is_read_as_our_own() {
        let shelf = Typed::new(Arc::new(Shelf));
        let ours = written(2, json!("/board/1"));
        for (name, handle) in [
            ("ours", ours.clone()),
            ("the release before wrote a number", written(1, json!(1))),
            ("the next one will write an object", written(3, json!({ "board": "/board/1" }))),
        ] {
            assert_eq!(shelf.current(&handle), Ok(ours.clone()), "case: {name}");
            assert_eq!(shelf.source(&handle), shelf.source(&ours), "case: {name}");
        }
    }

    #[test]
    fn what_cannot_be_read_says_why_and_is_nobodys_to_delete() {
        let shelf = Typed::new(Arc::new(Shelf));
        let other = Envelope { backend: "drawer".to_owned(), ..written(2, json!("/board/1")) };
        let cases = [
            (written(0, json!(1)), "version 0 is too old"),
            (written(4, json!(1)), "has version 4; this release reads up to 2: upgrade"),
            (written(1, json!("one")), "version 1 is too old"),
            (written(2, json!(1)), "is not readable"),
            (other, "belongs to the backend \"drawer\""),
        ];
        for (handle, text) in cases {
            let error = shelf.current(&handle).expect_err(text).to_string();
            assert!(error.contains(text), "{text:?} not in {error:?}");
            let failure = Typed::<Shelf>::open(&handle).err().map(|failure| failure.class());
            assert!(matches!(failure, Some(volwright_provisioner::Class::Blocked(_))), "{error}");
        }
    }
}
