//! From a claim to a path below the root.

use volwright_provisioner::{
    ClaimInfo, ComponentError, Failure, FillError, Pattern, PvName, RelativePath, Result,
};
use volwright_volume_tree::shorten;

/// To this many bytes names and values are shortened, where a component would be longer than file systems take: a
/// namespace (63), a claim's name and a PV's name fit into one component then.
const SHORT: usize = 100;

/// The volume's path. The same claim always gets the same; two claims never share one that has the PV's name in it.
pub(crate) fn path_of(pattern: &Pattern, claim: &ClaimInfo, pv_name: &PvName) -> Result<RelativePath> {
    let filled = match pattern.fill(claim, pv_name) {
        Err(FillError::Component(ComponentError::TooLong(_))) => {
            pattern.fill(&short(claim), &PvName::new(shorten(pv_name.as_str(), SHORT)))
        }
        filled => filled,
    };
    filled.map_err(|error| Failure::invalid(format!("parameter \"pathPattern\": {error}")))
}

fn short(claim: &ClaimInfo) -> ClaimInfo {
    let all = |map: &std::collections::BTreeMap<String, String>| {
        map.iter().map(|(key, value)| (key.clone(), shorten(value, SHORT))).collect()
    };
    ClaimInfo {
        namespace: shorten(&claim.namespace, SHORT),
        name: shorten(&claim.name, SHORT),
        uid: claim.uid.clone(),
        labels: all(&claim.labels),
        annotations: all(&claim.annotations),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;
    use volwright_provisioner::ClaimUid;

    fn claim(name: &str) -> ClaimInfo {
        ClaimInfo {
            namespace: "n".repeat(63),
            name: name.to_owned(),
            uid: ClaimUid::new("u"),
            labels: [].into(),
            annotations: [("dir".to_owned(), "a/b".to_owned())].into(),
        }
    }

    #[test]
    fn the_longest_names_fit_and_stay_apart() {
        let pv_name = PvName::new("pvc-0b0ef3f3-7a62-4d5f-9c3a-1c2f0d9a7e11");
        for pattern in [
            "${pvc.namespace}-${pvc.name}-${pv.name}",
            "${pvc.namespace}-${pvc.name}",
            "x/${pvc.namespace}${pvc.name}",
        ] {
            let pattern = Pattern::parse(pattern).unwrap();
            let (one, two) = (format!("{}1", "c".repeat(252)), format!("{}2", "c".repeat(252)));
            let path = |name: &str| path_of(&pattern, &claim(name), &pv_name).unwrap();
            assert_ne!(path(&one), path(&two));
            assert_eq!(path(&one), path(&one));
            assert!(path(&one).components().iter().all(|c| c.len() <= 255));
        }
    }

    #[test]
    fn short_names_are_left_as_they_are() {
        let claim = ClaimInfo { namespace: "ns".into(), ..claim("data") };
        let pattern = Parameters::default().pattern().unwrap();
        assert_eq!(path_of(&pattern, &claim, &PvName::new("pvc-1")).unwrap().to_string(), "ns-data-pvc-1");
    }

    #[test]
    fn a_refused_path_is_the_class_or_claims_to_mend() {
        let pattern = Pattern::parse("${pvc.annotations['dir']}").unwrap();
        let failure = path_of(&pattern, &claim("c"), &PvName::new("p")).unwrap_err();
        assert_eq!(failure.class(), volwright_provisioner::Class::Invalid);
        assert!(failure.message().contains("has a slash"), "{failure}");
    }
}
