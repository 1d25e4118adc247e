//! Create, update, patch and delete, with all that the server checks on the way.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

use super::defaults;
use super::object::{
    Stored, at, events_from_core, events_to_core, finalizers, is_terminating, list_at, name, namespace,
    remove, set, text_at, uid,
};
use super::patch;
use super::quantity;
use super::resources::Resource;
use super::status::{FieldError, Status};
use super::store::{State, key};
use super::validate;

/// What a write is about, and how it is to be done.
pub(super) struct Write<'a> {
    pub resource: &'static Resource,
    pub namespace: &'a str,
    pub name: &'a str,
    /// Through `/status`.
    pub to_status: bool,
    /// Only say what would come of it.
    pub dry_run: bool,
    pub now: Timestamp,
}

/// What came of a write.
pub(super) enum Written {
    /// The object as it now is, or was last.
    Object(Arc<Stored>),
    /// It was not there before.
    Created(Arc<Stored>),
    /// It is gone; this was its uid.
    Deleted(String),
}

/// The kinds of patches, by content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
}

const NAMESPACES: usize = 0;
const CLASSES: usize = 9;

impl Write<'_> {
    fn key(&self) -> String {
        key(self.namespace, self.name)
    }

    /// Timestamps have whole seconds.
    fn now_text(&self) -> String {
        time_text(self.now)
    }

    fn table(&self) -> usize {
        self.resource.table
    }

    /// POST.
    pub fn create(&self, state: &mut State, body: Value) -> Result<Written, Status> {
        let mut object = self.accept(body)?;
        if !text_at(&object, &["metadata", "resourceVersion"]).is_empty() {
            let mut status =
                Status::new(500, "", "resourceVersion should not be set on objects to be created");
            status.details = Value::Null;
            return Err(status);
        }
        if self.resource.namespaced {
            self.check_namespace(state, name(&object))?;
        }
        let prefix = text_at(&object, &["metadata", "generateName"]).to_owned();
        if name(&object).is_empty() && !prefix.is_empty() {
            for _ in 0..8 {
                // Leaves room for the end of the name.
                let prefix: String = prefix.chars().take(58).collect();
                let name = format!("{prefix}{}", state.suffix());
                let taken = state.get(self.table(), &key(self.namespace, &name)).is_some();
                set(&mut object, &["metadata", "name"], json!(name));
                if !taken {
                    break;
                }
            }
        }
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
            remove(&mut object, &["metadata", field]);
        }
        defaults::normalise(self.stored_shape(), &mut object);
        set(&mut object, &["metadata", "uid"], json!(state.uid()));
        set(&mut object, &["metadata", "creationTimestamp"], json!(self.now_text()));
        defaults::prepare_create(self.resource, &mut object, &self.now_text());
        if self.resource.kind == "PersistentVolumeClaim"
            && defaults::wants_default_class(&object)
            && let Some(class) = default_class(state)
        {
            set(&mut object, &["spec", "storageClassName"], json!(class));
        }
        let mut errors = validate::validate(self.resource, &object);
        if self.resource.is_converted() {
            errors.extend(validate::new_event(&object));
        }
        let name = name(&object).to_owned();
        if !errors.is_empty() {
            return Err(Status::invalid(self.stored_shape(), &name, &errors));
        }
        let key = key(self.namespace, &name);
        if state.get(self.table(), &key).is_some() {
            return Err(Status::already_exists(self.resource, &name));
        }
        Ok(Written::Created(self.commit(state, &key, object)))
    }

    /// PUT.
    pub fn replace(&self, state: &mut State, body: Value) -> Result<Written, Status> {
        let object = self.accept(body)?;
        self.check_name(&object)?;
        let Some(old) = state.get(self.table(), &self.key()).cloned() else {
            if self.resource.create_on_update && !self.to_status {
                return self.create(state, object);
            }
            return Err(Status::not_found(self.resource, self.name));
        };
        let wanted = uid(&object);
        if !wanted.is_empty() && wanted != uid(&old.value) {
            return Err(self.uid_conflict(wanted, uid(&old.value)));
        }
        self.update(state, &old, object)
    }

    /// PATCH.
    pub fn patch(&self, state: &mut State, kind: PatchKind, change: &Value) -> Result<Written, Status> {
        let Some(old) = state.get(self.table(), &self.key()).cloned() else {
            return Err(Status::not_found(self.resource, self.name));
        };
        let converted = self.resource.is_converted();
        let mut object = if converted { events_from_core(&old.value) } else { old.value.clone() };
        match kind {
            PatchKind::Merge => patch::merge(&mut object, change),
            PatchKind::Strategic => patch::strategic(&mut object, change).map_err(Status::bad_request)?,
            PatchKind::Json => patch::json_patch(&mut object, change).map_err(|why| {
                let message =
                    format!("the server rejected our request due to an error in our request: {why}");
                Status::new(422, "Invalid", message)
            })?,
        }
        let types = |object: &Value| (object.get("kind").cloned(), object.get("apiVersion").cloned());
        if types(&object) != types(&old.value) && !converted {
            let error =
                FieldError::invalid("patch", &json!(object.to_string()), "the patch changes the type");
            return Err(Status::invalid_kind("", "", "", &[error]));
        }
        let object = self.accept(object)?;
        self.check_name(&object)?;
        self.update(state, &old, object)
    }

    /// DELETE. `options` are the request's DeleteOptions.
    pub fn delete(&self, state: &mut State, options: &Value) -> Result<Written, Status> {
        let key = self.key();
        let Some(old) = state.get(self.table(), &key).cloned() else {
            return Err(Status::not_found(self.resource, self.name));
        };
        self.check_delete(&old, options)?;
        let mut object = old.value.clone();
        for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
            if text_at(options, &["propagationPolicy"]) == policy && !is_terminating(&object) {
                let mut all = finalizers(&object).to_vec();
                all.push(json!(finalizer));
                set(&mut object, &["metadata", "finalizers"], json!(all));
            }
        }
        let grace = self.grace(&object, options);
        let before = at(&object, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_u64);
        let stays = grace > 0 || !finalizers(&object).is_empty() || self.waits_for_finalize(&object);
        // Of a pod it is written first that it goes, even if it goes at once.
        let told = self.resource.kind == "Pod" && before != Some(0);
        if !stays && !told {
            return Ok(self.gone(state, &key, old));
        }
        if !is_terminating(&object) || before.is_some_and(|before| grace < before) {
            let end = Timestamp::from_second(self.now.as_second().saturating_add_unsigned(grace))
                .unwrap_or(self.now);
            set(&mut object, &["metadata", "deletionTimestamp"], json!(time_text(end)));
            // A namespace has none: its end is not a matter of time.
            if self.resource.kind != "Namespace" {
                set(&mut object, &["metadata", "deletionGracePeriodSeconds"], json!(grace));
            }
            let generation = at(&object, &["metadata", "generation"]).and_then(Value::as_u64);
            // It is counted once that it goes.
            if let Some(generation) = generation.filter(|_| before.is_none()) {
                set(&mut object, &["metadata", "generation"], json!(generation + 1));
            }
            if self.resource.kind == "Namespace" {
                set(&mut object, &["status", "phase"], json!("Terminating"));
            }
        }
        if object == old.value {
            return Ok(Written::Object(old));
        }
        let written = self.commit(state, &key, object);
        Ok(if stays { Written::Object(written) } else { self.gone(state, &key, written) })
    }

    fn check_delete(&self, old: &Stored, options: &Value) -> Result<(), Status> {
        if self.resource.kind == "Namespace" && ["default", "kube-system", "kube-public"].contains(&self.name)
        {
            return Err(Status::forbidden(self.resource, self.name, "this namespace may not be deleted"));
        }
        let wanted = text_at(options, &["preconditions", "uid"]);
        if !wanted.is_empty() && wanted != uid(&old.value) {
            let why = format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({}). The object might have been deleted and then recreated",
                uid(&old.value)
            );
            return Err(Status::delete_conflict(self.resource, self.name, &why));
        }
        let wanted = text_at(options, &["preconditions", "resourceVersion"]);
        if !wanted.is_empty() && wanted != old.version.to_string() {
            let why = format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({}). The object might have been modified",
                old.version
            );
            return Err(Status::delete_conflict(self.resource, self.name, &why));
        }
        Ok(())
    }

    /// Seconds for which a deleted pod stays for its kubelet. All else goes at once.
    fn grace(&self, object: &Value, options: &Value) -> u64 {
        let finished = ["Succeeded", "Failed"].contains(&text_at(object, &["status", "phase"]));
        if self.resource.kind != "Pod" || finished || text_at(object, &["spec", "nodeName"]).is_empty() {
            return 0;
        }
        let own =
            at(object, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_u64).unwrap_or(30);
        let wanted = at(options, &["gracePeriodSeconds"]).and_then(Value::as_u64).unwrap_or(own);
        let left = at(object, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_u64);
        left.map_or(wanted, |left| wanted.min(left))
    }

    /// A namespace stays until its content is gone.
    fn waits_for_finalize(&self, object: &Value) -> bool {
        self.resource.kind == "Namespace" && !list_at(object, &["spec", "finalizers"]).is_empty()
    }

    fn gone(&self, state: &mut State, key: &str, last: Arc<Stored>) -> Written {
        let deleted = if self.dry_run { None } else { state.delete(self.table(), key) };
        let last = deleted.unwrap_or(last);
        if self.resource.returns_deleted {
            Written::Object(last)
        } else {
            Written::Deleted(uid(&last.value).to_owned())
        }
    }

    /// The body as an object of this kind and place, in the stored shape.
    fn accept(&self, mut body: Value) -> Result<Value, Status> {
        if !body.is_object() {
            return Err(Status::bad_request("the object provided is unrecognized (must be of type Object)"));
        }
        let (kind, version) = (text_at(&body, &["kind"]), text_at(&body, &["apiVersion"]));
        let expected = self.resource.api_version();
        if !(kind.is_empty() || kind == self.resource.kind) || !(version.is_empty() || version == expected) {
            // The real server tells its own package for the group.
            let group =
                self.resource.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
            let message = format!(
                "{kind} in version {:?} cannot be handled as a {}: converting ({version}.{kind}) to ({group}.{}): unknown conversion",
                version.rsplit('/').next().unwrap_or_default(),
                self.resource.kind,
                self.resource.kind
            );
            return Err(Status::bad_request(message));
        }
        if validate::malformed_size(&body) {
            let kind = self.resource.kind;
            let message =
                format!("{kind} in version \"v1\" cannot be handled as a {kind}: {}", quantity::RULE);
            return Err(Status::bad_request(message));
        }
        if self.resource.is_converted() {
            body = events_to_core(&body);
        }
        let own = namespace(&body);
        if own.is_empty() && self.resource.namespaced {
            set(&mut body, &["metadata", "namespace"], json!(self.namespace));
        } else if own != self.namespace {
            let message =
                "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Status::bad_request(message));
        }
        Ok(body)
    }

    fn check_name(&self, object: &Value) -> Result<(), Status> {
        if name(object) == self.name {
            return Ok(());
        }
        Err(Status::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            name(object),
            self.name
        )))
    }

    fn stored_shape(&self) -> &'static Resource {
        Resource::stored_in(self.table()).unwrap_or(self.resource)
    }

    fn check_namespace(&self, state: &State, object: &str) -> Result<(), Status> {
        let namespaces = Resource::stored_in(NAMESPACES).unwrap_or(self.resource);
        let Some(namespace) = state.get(NAMESPACES, self.namespace) else {
            return Err(Status::not_found(namespaces, self.namespace));
        };
        if is_terminating(&namespace.value) {
            let why = format!(
                "unable to create new content in namespace {} because it is being terminated",
                self.namespace
            );
            let mut status = Status::forbidden(self.resource, object, &why);
            status.details["causes"] = json!([{
                "reason": "NamespaceTerminating", "field": "metadata.namespace",
                "message": format!("namespace {} is being terminated", self.namespace),
            }]);
            return Err(status);
        }
        Ok(())
    }

    fn uid_conflict(&self, wanted: &str, found: &str) -> Status {
        let group =
            if self.resource.group.is_empty() { String::new() } else { format!("{}/", self.resource.group) };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{group}{}/{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}",
            self.resource.plural,
            self.key()
        );
        Status::conflict(self.resource, self.name, &why)
    }

    /// Puts `new` in the place of `old`, if it may.
    fn update(&self, state: &mut State, old: &Arc<Stored>, mut new: Value) -> Result<Written, Status> {
        let version = text_at(&new, &["metadata", "resourceVersion"]);
        if version.is_empty() || version == "0" {
            if !self.resource.unconditional_update {
                let error = FieldError::invalid(
                    "metadata.resourceVersion",
                    &json!(0),
                    "must be specified for an update",
                );
                let Resource { group, plural, .. } = self.resource;
                return Err(Status::invalid_kind(group, plural, self.name, &[error]));
            }
        } else if version != old.version.to_string() {
            return Err(Status::modified(self.resource, self.name));
        }
        set(&mut new, &["metadata", "resourceVersion"], json!(old.version.to_string()));
        defaults::prepare_update(self.resource, &old.value, &mut new, self.to_status, &self.now_text());
        defaults::normalise(self.stored_shape(), &mut new);
        self.keep_system_fields(&old.value, &mut new);
        let errors = validate::validate_update(self.resource, &old.value, &new);
        if !errors.is_empty() {
            return Err(Status::invalid(self.stored_shape(), self.name, &errors));
        }
        self.check_resize(state, &old.value, &new)?;
        let grace =
            at(&new, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_u64).unwrap_or(0);
        if is_terminating(&new) && finalizers(&new).is_empty() && grace == 0 && !self.waits_for_finalize(&new)
        {
            if !self.dry_run {
                state.delete(self.table(), &self.key());
            }
            // As it was asked for, under the version that it had: it is kept nowhere.
            return Ok(Written::Object(Arc::new(Stored::new(new, old.version))));
        }
        if new == old.value {
            return Ok(Written::Object(Arc::clone(old)));
        }
        Ok(Written::Object(self.commit(state, &self.key(), new)))
    }

    /// What no request can change, and what a request may leave out.
    fn keep_system_fields(&self, old: &Value, new: &mut Value) {
        for (field, always) in [
            ("uid", false),
            ("creationTimestamp", true),
            ("deletionTimestamp", is_terminating(old)),
            ("deletionGracePeriodSeconds", false),
            ("generation", true),
        ] {
            let path = ["metadata", field];
            match at(old, &path) {
                Some(value) if always || at(new, &path).is_none() => set(new, &path, value.clone()),
                None if always => drop(remove(new, &path)),
                _ => {}
            }
        }
        let is_spec = |key: &str| key != "nodeName";
        let spec = |object: &Value| -> Vec<(String, Value)> {
            let spec = object.get("spec").and_then(Value::as_object).into_iter().flatten();
            spec.filter(|(key, _)| is_spec(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        // To be given a node is no change of what is wanted.
        if self.resource.kind == "Pod" && !self.to_status && spec(old) != spec(new) {
            let generation = at(old, &["metadata", "generation"]).and_then(Value::as_u64).unwrap_or(0);
            set(new, &["metadata", "generation"], json!(generation + 1));
        }
    }

    /// Admission plug-in PersistentVolumeClaimResize.
    fn check_resize(&self, state: &State, old: &Value, new: &Value) -> Result<(), Status> {
        let size = |value: &Value| {
            volwright_provisioner::parse_bytes(text_at(value, &validate::REQUEST)).unwrap_or_default()
        };
        if self.resource.kind != "PersistentVolumeClaim" || self.to_status || size(new) <= size(old) {
            return Ok(());
        }
        let class = text_at(old, &["spec", "storageClassName"]);
        let class = state.get(CLASSES, class).and_then(|class| class.value.get("allowVolumeExpansion"));
        if class == Some(&json!(true)) {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        Err(Status::forbidden(self.resource, self.name, why))
    }

    fn commit(&self, state: &mut State, key: &str, object: Value) -> Arc<Stored> {
        if self.dry_run {
            return Arc::new(Stored::unwritten(object));
        }
        state.put(self.table(), key, object)
    }
}

/// As metadata has it: in whole seconds.
pub(super) fn time_text(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// The newest of the classes that say that they are the default.
fn default_class(state: &State) -> Option<String> {
    let classes = &state.tables.get(CLASSES)?.objects;
    let defaults = classes.values().filter(|class| defaults::is_default_class(&class.value));
    let newest = defaults.max_by(|a, b| {
        let made = |class: &Stored| text_at(&class.value, &["metadata", "creationTimestamp"]).to_owned();
        // Of two made in the same second the first by name.
        made(a).cmp(&made(b)).then_with(|| name(&b.value).cmp(name(&a.value)))
    });
    newest.map(|class| name(&class.value).to_owned())
}
