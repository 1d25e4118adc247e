//! What the story puts into the cluster.

use serde_json::{Value, json};

pub(super) const NAMESPACE: &str = "volwright-demo";
pub(super) const NODE: &str = "demo-node";

pub(super) fn namespace() -> Value {
    json!({ "metadata": { "name": NAMESPACE } })
}

pub(super) fn node() -> Value {
    json!({ "metadata": { "name": NODE, "labels": { "kubernetes.io/hostname": NODE } } })
}

/// The scheduler counts pods against what a kubelet would report. There is none, so we say it.
pub(super) fn room_for_pods() -> Value {
    let room = json!({ "pods": "110", "cpu": "8", "memory": "16Gi" });
    json!({ "status": { "capacity": room, "allocatable": room } })
}

/// One that makes and deletes, one that keeps, and one with a mistake in it.
pub(super) fn classes() -> [Value; 3] {
    let class = |name: &str, parameters: Value| {
        json!({
            "metadata": { "name": name },
            "provisioner": "local-path.volwright.io",
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": parameters,
        })
    };
    [
        class("demo", json!({ "mode": "0750" })),
        class("demo-keep", json!({ "onDelete": "retain" })),
        class("demo-typo", json!({ "pathPatern": "${pvc.name}" })),
    ]
}

pub(super) fn claim(name: &str, class: &str, mode: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "storageClassName": class,
            "accessModes": [mode],
            "resources": { "requests": { "storage": "10Mi" } },
        },
    })
}

/// A pod that uses the claim of its name.
pub(super) fn pod(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "app",
                "image": "none",
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": name } }],
        },
    })
}
