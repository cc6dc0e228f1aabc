"""What MXNet asks a GPU to do, recorded where there is no GPU.

One shared object takes the place of the CUDA runtime, the driver, cuDNN, cuBLAS, cuSOLVER, cuFFT, cuRAND, NVRTC, NCCL
and NVTX under the wheel mxnet-cu112 1.9.1, so that ``mx.gpu(0)`` works. Memory is the host's and copies are done;
kernels and library calls are not executed, but each is a line of a file, the record. It says which kernels run with
which dtypes, how often the host waits, what is copied and how much memory is allocated. It says nothing about
values, time, or what a library would refuse: cuDNN offers one algorithm, in the math type that is asked for. Memory
keeps what was last copied there, zeros at first; operators that read a count from the GPU, such as ``boolean_mask``,
see that.

In the environment that ``make test-gpu-record`` makes, or another one with mxnet-cu112 1.9.1 and the extra gpu-record,
after ``python -m tools.gpu_record.build recorder``::

    subprocess.run([sys.executable, "train.py"], env=environment("recorder", "record.jsonl"), check=True)
    print(summarize(sections(read("record.jsonl"))["step"]))

where train.py calls ``control.mark("step")``.

=============  ===============================================================================================
``*.c``        the recorder
``build``      compiles it: ``python -m tools.gpu_record.build FOLDER``
``process``    the environment under which a process records
``control``    inside such a process: marks, and what the host reads of flags
``read``       a record as a list of calls, and its sections
``summary``    what a section amounts to
``step``       a training step of a network in float32, O1 and O2: ``python -m tools.gpu_record.step --help``
=============  ===============================================================================================
"""
