"""Options with which each detector learns a small task in a moment."""

OPTIONS = {
    "patchcore": {},
    "padim": {"channels": 20},
    "cfa": {"epochs": 2, "batch_size": 4},
    "stfpm": {"epochs": 2, "batch_size": 3},
    "paste": {"epochs": 2, "batch_size": 3},
    "rd4ad": {"epochs": 2, "batch_size": 4},
    "fastflow": {"epochs": 2, "batch_size": 4, "flow_steps": 2},
    "efficientad": {
        "epochs": 2,
        "batch_size": 2,
        "learning_rate": 5e-3,
        "width": 8,
        "teacher_out_channels": 16,
        "teacher_steps": 4,
        "teacher_batch_size": 3,
        "hard_quantile": 0.9,
    },
    "ganomaly": {"epochs": 2, "batch_size": 3, "width": 4, "latent_size": 8},
}
