//! Claims on their way, as a provisioner would see them.

use super::*;
use crate::apiserver::Options;

const PROVISIONER: &str = "p.x.io";

fn server(binding: &str) -> ApiServer {
    let server = ApiServer::new(Options::default());
    let class =
        json!({ "metadata": { "name": "c" }, "provisioner": PROVISIONER, "volumeBindingMode": binding });
    server.create("storageclasses", class).unwrap();
    for node in ["n2", "n1"] {
        let labels = json!({ "kubernetes.io/hostname": node });
        server.create("nodes", json!({ "metadata": { "name": node, "labels": labels } })).unwrap();
    }
    server
}

fn claim(server: &ApiServer, change: &Value) -> Value {
    let mut object = json!({
        "metadata": { "name": "a", "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } }, "storageClassName": "c" },
    });
    crate::apiserver::patch::merge(&mut object, change);
    server.create(CLAIMS, object).unwrap()
}

/// A PV as a provisioner makes it.
fn volume(claim: &Value, name: &str) -> Value {
    json!({
        "metadata": { "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": PROVISIONER } },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "c",
            "persistentVolumeReclaimPolicy": "Delete", "nfs": { "server": "s", "path": "/p" },
            "claimRef": { "namespace": "default", "name": "a", "uid": uid(claim) },
        },
    })
}

fn pod(server: &ApiServer) -> Value {
    let volumes = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "a" } }]);
    let object = json!({ "metadata": { "name": "p", "namespace": "default" },
        "spec": { "containers": [{ "name": "c", "image": "i" }], "volumes": volumes } });
    server.create("pods", object).unwrap()
}

/// Steps until all is quiet.
fn settle(server: &ApiServer) {
    for _ in 0..20 {
        if step(server) == 0 {
            return;
        }
    }
    panic!("it never ends: {:#?}", server.list(CLAIMS, ""));
}

fn phases(server: &ApiServer) -> (String, String) {
    let phase = |object: Value| object["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let claim = server.get(CLAIMS, "default", "a").map(phase).unwrap_or_default();
    (claim, server.get(VOLUMES, "", "v").map(phase).unwrap_or_default())
}

#[test]
fn a_claim_is_given_to_its_provisioner_bound_and_released() {
    let server = server("Immediate");
    let made = claim(&server, &json!({}));
    settle(&server);
    let asked = server.get(CLAIMS, "default", "a").unwrap();
    for key in ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"] {
        assert_eq!(asked["metadata"]["annotations"][key], PROVISIONER);
    }
    server.create(VOLUMES, volume(&made, "v")).unwrap();
    settle(&server);
    let bound = server.get(CLAIMS, "default", "a").unwrap();
    assert_eq!(bound["spec"]["volumeName"], "v");
    assert_eq!(
        bound["status"],
        json!({ "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } })
    );
    assert_eq!(bound["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    let pv = server.get(VOLUMES, "", "v").unwrap();
    assert_eq!(pv["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], Value::Null);
    assert_eq!(pv["status"]["phase"], "Bound");
    server.delete(CLAIMS, "default", "a").unwrap();
    settle(&server);
    assert_eq!(phases(&server), (String::new(), "Released".into()));
    server.delete(VOLUMES, "", "v").unwrap();
    settle(&server);
    assert_eq!(phases(&server).1, "");
}

#[test]
fn a_late_claim_waits_for_a_pod_and_the_pod_for_its_claim() {
    let server = server("WaitForFirstConsumer");
    let made = claim(&server, &json!({}));
    settle(&server);
    assert_eq!(server.get(CLAIMS, "default", "a").unwrap(), made);
    pod(&server);
    settle(&server);
    let told = server.get(CLAIMS, "default", "a").unwrap();
    assert_eq!(told["metadata"]["annotations"]["volume.kubernetes.io/selected-node"], "n1");
    assert_eq!(told["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"], PROVISIONER);
    // The provisioner cannot do it there; and the node is no good any more.
    server.patch("nodes", "", "n1", &json!({ "spec": { "unschedulable": true } })).unwrap();
    let back = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": null } } });
    server.patch(CLAIMS, "default", "a", &back).unwrap();
    settle(&server);
    let told = server.get(CLAIMS, "default", "a").unwrap();
    assert_eq!(told["metadata"]["annotations"]["volume.kubernetes.io/selected-node"], "n2");
    let mut pv = volume(&made, "v");
    pv["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
        { "key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"] } ] }] } });
    server.create(VOLUMES, pv).unwrap();
    settle(&server);
    let pod = server.get("pods", "default", "p").unwrap();
    assert_eq!(
        (pod["spec"]["nodeName"].as_str(), pod["status"]["phase"].as_str()),
        (Some("n2"), Some("Running"))
    );
    // In use: the claim stays until the pod is gone.
    server.delete(CLAIMS, "default", "a").unwrap();
    controllers(&server);
    assert_eq!(phases(&server), ("Bound".into(), "Bound".into()));
    server.delete("pods", "default", "p").unwrap();
    settle(&server);
    assert_eq!(phases(&server), (String::new(), "Released".into()));
}

#[test]
fn a_claim_is_lost_with_its_volume() {
    let server = server("Immediate");
    let made = claim(&server, &json!({}));
    server.create(VOLUMES, volume(&made, "v")).unwrap();
    settle(&server);
    server.delete(VOLUMES, "", "v").unwrap();
    settle(&server);
    assert_eq!(phases(&server), ("Bound".into(), "Bound".into()), "a bound PV is protected");
    server.patch(VOLUMES, "", "v", &json!({ "metadata": { "finalizers": null } })).unwrap();
    settle(&server);
    assert_eq!(phases(&server), ("Lost".into(), String::new()));
}

#[test]
fn a_static_volume_is_taken_the_smallest_that_will_do() {
    let server = server("Immediate");
    for (name, size) in [("large", "10Gi"), ("v", "2Gi"), ("small", "1Mi")] {
        let mut pv = volume(&Value::Null, name);
        pv["spec"]["capacity"]["storage"] = json!(size);
        pv["spec"]["claimRef"] = Value::Null;
        server.create(VOLUMES, pv).unwrap();
    }
    settle(&server);
    claim(&server, &json!({}));
    settle(&server);
    assert_eq!(phases(&server), ("Bound".into(), "Bound".into()));
    let pv = server.get(VOLUMES, "", "v").unwrap();
    assert_eq!(pv["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    assert_eq!(server.get(VOLUMES, "", "large").unwrap()["status"]["phase"], "Available");
}

#[test]
fn a_claim_that_names_its_volume_gets_it() {
    let server = server("Immediate");
    let mut pv = volume(&Value::Null, "v");
    pv["spec"]["claimRef"] = Value::Null;
    server.create(VOLUMES, pv).unwrap();
    claim(&server, &json!({ "spec": { "volumeName": "v" } }));
    settle(&server);
    assert_eq!(phases(&server), ("Bound".into(), "Bound".into()));
    let bound = server.get(CLAIMS, "default", "a").unwrap();
    assert_eq!(bound["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], Value::Null);
}

#[test]
fn a_volume_for_an_earlier_claim_of_that_name_is_released() {
    let server = server("Immediate");
    let made = claim(&server, &json!({}));
    server.create(VOLUMES, volume(&made, "v")).unwrap();
    server.patch(CLAIMS, "default", "a", &json!({ "metadata": { "finalizers": null } })).unwrap();
    server.delete(CLAIMS, "default", "a").unwrap();
    claim(&server, &json!({}));
    settle(&server);
    assert_eq!(phases(&server), ("Pending".into(), "Released".into()));
}

#[test]
fn a_namespace_goes_with_all_that_is_in_it() {
    let server = server("Immediate");
    server.create("namespaces", json!({ "metadata": { "name": "ns" } })).unwrap();
    claim(&server, &json!({ "metadata": { "namespace": "ns" } }));
    server.delete("namespaces", "", "ns").unwrap();
    let late = json!({ "metadata": { "name": "x", "namespace": "ns" } });
    assert_eq!(server.create("configmaps", late).unwrap_err().code, 403);
    settle(&server);
    assert_eq!(server.get("namespaces", "", "ns").unwrap_err().code, 404);
    assert!(server.list(CLAIMS, "").unwrap().is_empty());
}
